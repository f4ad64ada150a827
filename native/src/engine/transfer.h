// One submission of a plan: what is still to be moved, what failed, and who waits for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/fork_count.h"
#include "base/memory_gate.h"
#include "base/unique_fd.h"
#include "engine/plan.h"
#include "kvferry/engine.h"
#include "memory/region_table.h"

namespace kvferry {

class TransferImpl final : public Transfer, public std::enable_shared_from_this<TransferImpl> {
 public:
  struct Order {  // what submit() was asked for
    std::shared_ptr<const PlanImpl> plan;
    std::vector<RegionTable::Pin> pins;  // of the plan's local regions; released before the transfer counts as settled
    Clock::time_point started;
    Deadline deadline;
    std::string notify;
    Priority priority = Priority::kNormal;
    int numa_node = -1;  // that all of its local memory lies on; -1: several, or unknown
  };
  explicit TransferImpl(Order order) : order_(std::move(order)) {}

  bool settled() const override { return settled_.load(std::memory_order_acquire); }
  bool wait(milliseconds timeout) override;
  void cancel() override;
  Status status() const override;
  std::vector<Status> piece_status() const override;
  std::string transport() const override;
  double seconds() const override;
  TransferStages stages() const override;
  int event_fd() override;

  const PlanImpl& plan() const { return *order_.plan; }
  Deadline deadline() const { return order_.deadline; }
  const std::string& notify() const { return order_.notify; }
  Priority priority() const { return order_.priority; }
  int numa_node() const { return order_.numa_node; }
  const std::atomic<bool>& stop_flag() const { return stop_; }
  MemoryGate& gate() { return gate_; }  // of its local memory: see LanePool::cut()

  std::size_t unsettled_place = 0;  // for the pool: where it stands in the list of those that are not settled

  // Scheduling state: the "Locked" methods are called with the mutex of the peer's LanePool held.
  bool exhausted_locked() const { return next_slice_ == plan().slices().size() || stop_.load(); }
  std::size_t untaken_slices_locked() const { return plan().slices().size() - next_slice_; }
  const PlanSlice& next_slice_locked() const { return plan().slices()[next_slice_]; }
  const PlanSlice& take_slice_locked() { return plan().slices()[next_slice_++]; }
  void enqueued_locked(Clock::time_point now) { queued_ = now; }
  void add_pending_locked() { ++pending_slices_; }
  void drop_pending_locked() { --pending_slices_; }
  void taken_locked(std::string_view transport, Clock::time_point now);  // one of its slices, by a rail
  bool abort_locked(Status why);                                         // the first reason stays: true if it is this
  const Status& abort_reason_locked() const { return abort_reason_; }
  void fail_run_locked(std::uint32_t run, const Status& why) { failures_.emplace_back(run, why); }
  // Bytes of a run may still land after the transfer: whatever else its status says, it says that.
  void warn_locked(std::string warning) { warning_ = std::move(warning); }
  // Its lanes have not come back, and their slices count as failed: what they report later is of no interest.
  void cut_locked();
  bool was_cut_locked() const { return cut_; }
  bool drained_locked() const { return exhausted_locked() && pending_slices_ == 0; }
  bool ok_locked() const { return failures_.empty() && abort_reason_.ok(); }

  // After drained, by exactly one thread: conclude(), accounting, publish(). `notify_status` fails the transfer
  // although its bytes were moved.
  struct Outcome {
    Status status;
    std::size_t failed_pieces = 0;
    std::string_view transport;  // the last one; "" if no rail ever had it
    double seconds = 0;
  };
  void moved(Clock::time_point now) { moved_ = now; }
  Outcome conclude(const Status& notify_status);
  void publish();  // settled from here on

 private:
  Status summary(std::size_t failed_pieces) const;
  std::vector<Status> collect_piece_status() const;

  Order order_;
  const std::uint64_t forks_ = fork_count();

  std::atomic<bool> stop_{false};
  MemoryGate gate_;
  std::size_t next_slice_ = 0;        // of the plan's; guarded by the pool's mutex, as are those below
  std::uint32_t pending_slices_ = 0;  // taken and not finished: executing, or waiting for a retry
  Status abort_reason_;
  bool cut_ = false;
  std::vector<std::pair<std::uint32_t, Status>> failures_;  // (run, why)
  std::string warning_;
  std::string_view last_transport_;
  std::string transports_;  // all so far
  Clock::time_point queued_{}, taken_{}, moved_{};

  std::atomic<bool> settled_{false};
  mutable std::mutex mutex_;  // guards what follows; taken after the pool's mutex if both are
  std::condition_variable done_;
  UniqueFd event_fd_;
  Status status_;  // written once, before settled_, as is the next
  Clock::time_point ended_{};
  bool sleepers_ = false;      // somebody waits for done_
  Clock::duration waking_{0};  // of the first of them; 0 until it woke
};

}  // namespace kvferry
