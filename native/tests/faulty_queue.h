// A request queue that fails where the test says so.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "io/plain_queue.h"

namespace kvferry::testing {

// Does what a plain queue does, except where the test says otherwise.
class FaultyQueue final : public IoQueue {
 public:
  using Fault = std::function<std::optional<std::int64_t>(IoRequest*)>;  // a result of its own, or nothing
  explicit FaultyQueue(Fault fault) : fault_(std::move(fault)) {}

  std::size_t depth() const override { return 4; }
  std::string note() const override { return "faulty"; }
  void start(const IoRequest& request) override {
    ++started;
    IoRequest altered = request;
    if (const auto own = fault_(&altered)) {
      ready_.push_back({request.tag, *own});
    } else {
      real_.start(altered);
    }
  }
  void wait(Deadline until, std::vector<IoResult>* done) override {
    if (hold && !cancelled) {
      std::this_thread::sleep_until(until);
      return;
    }
    if (!ready_.empty()) {
      done->push_back(ready_.front());
      ready_.pop_front();
      return;
    }
    real_.wait(until, done);
  }
  void cancel_all() override {
    cancelled = true;
    real_.cancel_all();
  }
  void remember_memory(std::uint64_t, std::byte*, std::uint64_t) override {}
  void forget_memory(std::uint64_t) override {}
  void forget_file(int) override {}

  int started = 0;
  bool hold = false, cancelled = false;

 private:
  const Fault fault_;
  PlainQueue real_{"test"};
  std::deque<IoResult> ready_;
};

inline std::optional<std::int64_t> no_fault(IoRequest*) { return std::nullopt; }

}  // namespace kvferry::testing
