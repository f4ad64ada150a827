// What stands between the threads that move a transfer's bytes and its local memory. They pass it for each step that
// touches that memory, and for no wait; once it is closed and nobody is inside, nothing of the transfer touches the
// memory any more, wherever its threads are held up. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvferry {

class MemoryGate {
 public:
  bool enter() {  // true: leave() must follow, soon
    if ((state_.fetch_add(1, std::memory_order_acquire) & kClosed) == 0) return true;
    leave();
    return false;
  }
  void leave() { state_.fetch_sub(1, std::memory_order_release); }
  void close() { state_.fetch_or(kClosed, std::memory_order_acq_rel); }  // for ever
  // Closed and nobody is inside: what they did to the memory is visible.
  bool quiet() const { return state_.load(std::memory_order_acquire) == kClosed; }

 private:
  static constexpr std::uint32_t kClosed = 1u << 31;
  std::atomic<std::uint32_t> state_{0};  // how many are inside
};

// Through the gate while it lives, if it was open. No gate: always open.
class GatePass {
 public:
  explicit GatePass(MemoryGate* gate) : gate_(gate), inside_(gate == nullptr || gate->enter()) {}
  ~GatePass() {
    if (gate_ != nullptr && inside_) gate_->leave();
  }
  GatePass(const GatePass&) = delete;
  GatePass& operator=(const GatePass&) = delete;
  bool inside() const { return inside_; }

 private:
  MemoryGate* const gate_;
  const bool inside_;
};

}  // namespace kvferry
