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

#include "base/unique_fd.h"
#include "engine/plan.h"
#include "kvferry/engine.h"
#include "memory/region_table.h"

namespace kvferry {

class TransferImpl final : public Transfer, public std::enable_shared_from_this<TransferImpl> {
 public:
  TransferImpl(std::shared_ptr<const PlanImpl> plan, std::vector<RegionTable::Pin> pins, Deadline deadline,
               std::string notify);

  bool settled() const override { return settled_.load(std::memory_order_acquire); }
  bool wait(milliseconds timeout) override;
  void cancel() override;
  Status status() const override;
  std::vector<Status> piece_status() const override;
  std::string transport() const override;
  double seconds() const override;
  int event_fd() override;

  const PlanImpl& plan() const { return *plan_; }
  Deadline deadline() const { return deadline_; }
  const std::string& notify() const { return notify_; }
  const std::atomic<bool>& stop_flag() const { return stop_; }

  // Scheduling state: the "Locked" methods are called with the mutex of the peer's LanePool held.
  bool exhausted_locked() const { return next_slice_ == plan_->slices().size() || stop_.load(); }
  const PlanSlice& take_slice_locked() { return plan_->slices()[next_slice_++]; }
  void abort_locked(Status why);  // the first reason stays
  const Status& abort_reason_locked() const { return abort_reason_; }
  void fail_run_locked(std::uint32_t run, const Status& why) { failures_.emplace_back(run, why); }
  // Bytes of a run may still land after the transfer: whatever else its status says, it says that.
  void warn_locked(std::string warning) { warning_ = std::move(warning); }
  void add_transport_locked(std::string_view name);
  bool drained_locked() const { return exhausted_locked() && pending_slices_ == 0; }
  void add_pending_locked() { ++pending_slices_; }
  void drop_pending_locked() { --pending_slices_; }
  bool ok_locked() const { return failures_.empty() && abort_reason_.ok(); }

  // After drained, by exactly one thread: conclude(), accounting, publish(). `notify_status` fails the transfer
  // although its bytes were moved.
  struct Outcome {
    Status status;
    std::size_t failed_pieces = 0;
  };
  Outcome conclude(const Status& notify_status);
  void publish();  // settled from here on

 private:
  Status summary(std::size_t failed_pieces) const;
  std::vector<Status> collect_piece_status() const;

  const std::shared_ptr<const PlanImpl> plan_;
  std::vector<RegionTable::Pin> pins_;  // released before the transfer counts as settled
  const Deadline deadline_;
  const std::string notify_;
  const Clock::time_point started_ = Clock::now();

  std::atomic<bool> stop_{false};
  std::size_t next_slice_ = 0;        // of the plan's; guarded by the pool's mutex, as are those below
  std::uint32_t pending_slices_ = 0;  // taken and not finished: executing, or waiting for a retry
  Status abort_reason_;
  std::vector<std::pair<std::uint32_t, Status>> failures_;  // (run, why)
  std::string warning_;
  std::vector<std::string_view> transports_;

  std::atomic<bool> settled_{false};
  mutable std::mutex mutex_;  // guards what follows; taken after the pool's mutex if both are
  std::condition_variable done_;
  UniqueFd event_fd_;
  Status status_;  // written once, before settled_, as are the next two
  std::string transport_text_;
  Clock::time_point ended_;
};

}  // namespace kvferry
