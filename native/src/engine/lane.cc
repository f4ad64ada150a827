#include "engine/lane.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"
#include "base/thread_turn.h"
#include "engine/lane_pool.h"

namespace kvferry {
namespace {

constexpr milliseconds kReopenPause{1000};   // after a failure, while other lanes still work
constexpr milliseconds kProbeTimeout{1000};  // for a better path, while a working one is at hand
constexpr milliseconds kShortestTry{1000};

// A hung rail must leave time for another one: each try gets a third of what is left.
Deadline try_deadline(Deadline transfer_deadline) {
  const Clock::time_point now = Clock::now();
  const Clock::duration share = std::max<Clock::duration>((transfer_deadline - now) / 3, kShortestTry);
  return sooner(transfer_deadline, now + share);
}

// Whether a rail that cannot be used any more broke, rather than was given up with a transfer that was ended or got too
// little time. If the path is at fault all the same, the next rail over it will show that.
bool is_at_fault(const Status& status, const TransferImpl& transfer) {
  if (status.ok() || transfer.stop_flag().load()) return false;
  return status.code() != Code::kDeadlineExceeded || !expired(transfer.deadline());
}

}  // namespace

void Lane::run() {
  while (pool_.wait_for_work(index_, not_before_)) {
    if (!ensure_rail() || !pool_.take(index_)) continue;
    take_long_turns(!slice_.transfer->plan().small());
    move();
  }
  drop_rail();
}

bool Lane::wants_other_rail() const {
  return !rail_ || (pool_.selector_.better_than(rank_) && Clock::now() >= no_probe_before_);
}

bool Lane::ensure_rail() {
  if (!wants_other_rail()) return true;
  const Deadline deadline = deadline_in(rail_ ? kProbeTimeout : pool_.connect_timeout_);
  Result<RailSelector::Opened> opened = pool_.selector_.open(index_, rail_ ? rank_ : RailSelector::kNoRank, deadline);
  if (!opened.ok()) {
    if (rail_) {
      no_probe_before_ = deadline_in(kReopenPause);
      return true;
    }
    not_before_ = deadline_in(kReopenPause);
    pool_.fail_queued(index_, opened.status());
    return false;
  }
  drop_rail();
  rail_ = std::move(opened->rail);
  rank_ = opened->rank;
  unproven_ = true;
  not_before_ = {};
  pool_.rail_opened(index_);
  return true;
}

void Lane::move() {
  const std::shared_ptr<TransferImpl> transfer = slice_.transfer;  // its stop flag is looked at below
  if (expired(transfer->deadline())) {                             // sooner than the keeper noticed
    const Status late{Code::kDeadlineExceeded, "the time allowed for the transfer ran out"};
    slice_.results.assign(slice_.batch.runs.size(), late);
    pool_.finish(index_, late, false);
    return;
  }
  slice_.results.assign(slice_.batch.runs.size(), Status());
  const Status status =
      rail_->execute(slice_.batch, slice_.results, try_deadline(transfer->deadline()), transfer->stop_flag());
  const bool blamed = is_at_fault(status, *transfer);
  pool_.selector_.moved(rank_, slice_.moved_bytes());
  pool_.finish(index_, status, blamed);
  if (status.ok()) {
    if (unproven_) unproven_ = !pool_.selector_.report_success(rank_);
    return;
  }
  if (blamed) pool_.selector_.report_failure(rank_, status);
  drop_rail();
}

void Lane::drop_rail() {
  if (!rail_) return;
  pool_.rail_closed(index_);
  rail_.reset();
  pool_.selector_.released(index_, rank_);
}

}  // namespace kvferry
