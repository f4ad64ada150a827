#include "engine/lane.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"

namespace kvferry {
namespace {

constexpr milliseconds kReopenPause{1000};   // after a failure, while other lanes still work
constexpr milliseconds kProbeTimeout{1000};  // for a better path, while a working one is at hand
constexpr milliseconds kShortestTry{1000};

// A hung rail must leave time for another one: each try gets a third of what is left.
Deadline try_deadline(Deadline transfer_deadline) {
  const milliseconds share = std::max(remaining(transfer_deadline) / 3, kShortestTry);
  return sooner(transfer_deadline, deadline_in(share));
}

}  // namespace

void Lane::run() {
  Slice slice;
  while (pool_.wait_for_work(index_, not_before_)) {
    if (!ensure_rail()) continue;
    if (!pool_.take(index_, rail_.get(), &slice)) continue;
    move(&slice);
  }
}

bool Lane::ensure_rail() {
  if (rail_ && (Clock::now() < no_probe_before_ || !pool_.selector_.better_than(rank_))) return true;
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
  not_before_ = {};
  pool_.set_rail_open(index_, true);
  pool_.start_lanes();
  return true;
}

void Lane::move(Slice* slice) {
  slice->results.assign(slice->batch.runs.size(), Status());
  const Status status = rail_->execute(slice->batch, slice->results, try_deadline(slice->transfer->deadline()),
                                       slice->transfer->stop_flag());
  const bool stopped = slice->transfer->stop_flag().load();
  pool_.finish(index_, slice, status);
  if (status.ok()) {
    if (std::exchange(failed_before_, false)) pool_.selector_.report_success(rank_);
    return;
  }
  if (!stopped) {
    failed_before_ = true;
    pool_.selector_.report_failure(rank_, status);
  }
  drop_rail();
}

void Lane::drop_rail() {
  if (!rail_) return;
  rail_.reset();
  pool_.set_rail_open(index_, false);
  pool_.selector_.released(rank_);
}

}  // namespace kvferry
