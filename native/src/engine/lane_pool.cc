#include "engine/lane_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/deadline.h"
#include "engine/lane.h"

namespace kvferry {
namespace {

constexpr std::uint32_t kMaxAttempts = 5;  // two on a transport until it is set aside, two on the next, one to spare

std::size_t most_rails(const std::vector<Transport*>& ranked) {
  std::size_t most = 1;
  for (const Transport* transport : ranked) most = std::max(most, transport->rails_per_peer());
  return most;
}

}  // namespace

LanePool::LanePool(std::vector<Transport*> ranked, PeerContext peer, const EngineOptions& options, Counters& counters,
                   Hooks hooks)
    : slice_bytes_(options.slice_bytes),
      connect_timeout_(options.connect_timeout),
      counters_(counters),
      hooks_(std::move(hooks)),
      selector_(ranked, std::move(peer), counters),
      running_(most_rails(ranked)),
      rail_open_(running_.size(), false) {}

Status LanePool::enqueue(const std::shared_ptr<TransferImpl>& transfer) {
  std::lock_guard lock(mutex_);
  if (!stopped_.ok()) return stopped_;
  start_lanes_locked();
  if (!running_[0].started) return {Code::kResourceExhausted, "cannot start a thread for this peer"};
  ready_.push_back(transfer);
  unsettled_.push_back(transfer);
  wake_locked(transfer->plan().slices().size());
  return {};
}

void LanePool::start_lanes() {
  std::lock_guard lock(mutex_);
  start_lanes_locked();
}

void LanePool::start_lanes_locked() {
  const std::size_t wanted = std::min(selector_.lanes_wanted(), running_.size());
  for (std::size_t lane = 0; lane < wanted && stopped_.ok(); ++lane) {
    if (running_[lane].started) continue;
    running_[lane].started =
        hooks_.spawn("kvf-lane-" + std::to_string(lane), [this, lane] { Lane(*this, lane).run(); }).ok();
  }
}

bool LanePool::any_rail_open_locked() const {
  return std::find(rail_open_.begin(), rail_open_.end(), true) != rail_open_.end();
}

void LanePool::wake_locked(std::size_t most) {
  const std::size_t wanted = std::min(selector_.lanes_wanted(), running_.size());
  for (std::size_t lane = 0; lane < wanted && most > 0; ++lane) {
    if (!running_[lane].idle) continue;
    running_[lane].idle = false;
    running_[lane].wake.notify_one();
    --most;
  }
}

void LanePool::wake_all_locked() {
  for (Running& running : running_) {
    running.idle = false;
    running.wake.notify_one();
  }
}

bool LanePool::wait_for_work(std::size_t lane, Clock::time_point not_before) {
  std::unique_lock lock(mutex_);
  Running& self = running_[lane];
  for (;;) {
    if (!stopped_.ok()) return false;
    if (has_work_locked() && lane < selector_.lanes_wanted()) {
      if (Clock::now() >= not_before || !any_rail_open_locked()) return true;
      self.wake.wait_until(lock, not_before);  // another lane is at it; this one is not idle but out of order
      continue;
    }
    self.idle = true;
    self.wake.wait(lock, [&] { return !self.idle; });
  }
}

SliceShape LanePool::slice_shape() const { return {slice_bytes_, std::min(selector_.lanes_wanted(), running_.size())}; }

bool LanePool::take(std::size_t lane, Rail* rail, Slice* slice) {
  std::lock_guard lock(mutex_);
  if (!stopped_.ok() || !has_work_locked()) return false;
  if (!retry_.empty()) {
    *slice = std::move(retry_.front());
    retry_.pop_front();
  } else {
    slice->take(std::move(ready_.front()));
    ready_.pop_front();
    slice->transfer->add_pending_locked();
    if (!slice->transfer->exhausted_locked()) ready_.push_back(slice->transfer);
  }
  slice->transfer->add_transport_locked(rail->transport());
  running_[lane].rail = rail;
  running_[lane].transfer = slice->transfer.get();
  return true;
}

void LanePool::account_locked(const Slice& slice, std::string_view transport) {
  const std::uint64_t moved = slice.moved_bytes();
  const bool reads = slice.batch.op == Op::kRead;
  (reads ? stats_.bytes_read : stats_.bytes_written) += moved;
  counters_.add(reads ? Counters::kReadBytes : Counters::kWrittenBytes, moved);
  counters_.add(transport == "shm" ? Counters::kShmBytes : Counters::kTcpBytes, moved);
}

// Returns true if a part of the slice should be tried again; then the slice holds that part.
bool LanePool::record_results_locked(Slice* slice, const Status& rail_status) {
  TransferImpl& transfer = *slice->transfer;
  const bool aborted = transfer.stop_flag().load();
  const bool may_retry = !rail_status.ok() && !aborted && stopped_.ok() && slice->attempts + 1 < kMaxAttempts &&
                         !expired(transfer.deadline());
  const bool retry = slice->reduce([&](std::size_t place) {
    const Status& result = slice->results[place];
    if (result.ok()) return false;
    const bool final = is_final(result.code());
    if (may_retry && !final) return true;
    if (rail_status.ok() && !final) transfer.warn_locked(result.message());
    transfer.fail_run_locked(slice->run_at(place), aborted && !final ? transfer.abort_reason_locked() : result);
    return false;
  });
  if (retry) ++slice->attempts;
  return retry;
}

void LanePool::finish(std::size_t lane, Slice* slice, const Status& rail_status) {
  std::shared_ptr<TransferImpl> drained;
  {
    std::lock_guard lock(mutex_);
    account_locked(*slice, running_[lane].rail->transport());
    running_[lane].rail = nullptr;
    running_[lane].transfer = nullptr;
    std::shared_ptr<TransferImpl> transfer = slice->transfer;
    if (record_results_locked(slice, rail_status)) {
      ++stats_.retried_slices;
      counters_.add(Counters::kRetriedSlices);
      retry_.push_back(std::move(*slice));
      wake_locked(running_.size());
    } else {
      transfer->drop_pending_locked();
      if (transfer->drained_locked()) {
        forget_locked(transfer.get());
        drained = std::move(transfer);
      }
    }
    slice->clear();
  }
  if (drained) settle(drained);
}

void LanePool::settle(const std::shared_ptr<TransferImpl>& transfer) {
  Status notified;
  // Nobody else knows the transfer any more, so its scheduling state is ours without the mutex.
  // An abort that came when the last bytes were moving fails no piece, but the message is not sent any more.
  if (!transfer->notify().empty()) {
    notified = transfer->ok_locked() ? hooks_.notify(*transfer) : transfer->abort_reason_locked();
  }
  const TransferImpl::Outcome outcome = transfer->conclude(notified);
  counters_.add(Counters::kPieces, transfer->plan().pieces());
  if (!outcome.status.ok()) counters_.add(Counters::kTransfersFailed);
  if (outcome.failed_pieces > 0) counters_.add_failed_pieces(outcome.status.code(), outcome.failed_pieces);
  {
    const std::lock_guard lock(mutex_);
    stats_.pieces += transfer->plan().pieces();
    stats_.failed_pieces += outcome.failed_pieces;
  }
  transfer->publish();
}

void LanePool::forget_locked(const TransferImpl* transfer) {
  auto same = [&](const std::shared_ptr<TransferImpl>& other) { return other.get() == transfer; };
  std::erase_if(unsettled_, same);
  std::erase_if(ready_, same);
}

// Returns true if the transfer is drained by it: the caller settles it.
bool LanePool::drop_queued_locked(const std::shared_ptr<TransferImpl>& transfer, Status why) {
  auto known = std::find(unsettled_.begin(), unsettled_.end(), transfer);
  if (known == unsettled_.end()) return false;  // settled, or about to be
  transfer->abort_locked(std::move(why));
  std::erase(ready_, transfer);
  for (auto it = retry_.begin(); it != retry_.end();) {
    if (it->transfer != transfer) {
      ++it;
      continue;
    }
    for (std::uint32_t run : it->rest_run) transfer->fail_run_locked(run, transfer->abort_reason_locked());
    transfer->drop_pending_locked();
    it = retry_.erase(it);
  }
  for (const Running& running : running_) {
    if (running.transfer == transfer.get()) running.rail->interrupt();
  }
  if (!transfer->drained_locked()) return false;
  unsettled_.erase(known);
  return true;
}

void LanePool::abort(const std::shared_ptr<TransferImpl>& transfer, Status why) {
  bool drained = false;
  {
    std::lock_guard lock(mutex_);
    drained = drop_queued_locked(transfer, std::move(why));
  }
  if (drained) settle(transfer);
}

void LanePool::stop(const Status& why) {
  std::vector<std::shared_ptr<TransferImpl>> drained;
  {
    std::lock_guard lock(mutex_);
    if (stopped_.ok()) stopped_ = why;
    const std::vector<std::shared_ptr<TransferImpl>> all = unsettled_;
    for (const auto& transfer : all) {
      if (drop_queued_locked(transfer, why)) drained.push_back(transfer);
    }
    wake_all_locked();
  }
  for (const auto& transfer : drained) settle(transfer);
}

void LanePool::fail_queued(std::size_t lane, const Status& no_rail) {
  std::vector<std::shared_ptr<TransferImpl>> drained;
  const Status lost = hooks_.liveness();
  const Status& why = lost.ok() ? no_rail : lost;
  {
    std::lock_guard lock(mutex_);
    for (std::size_t other = 0; other < rail_open_.size(); ++other) {
      if (other == lane || !rail_open_[other]) continue;
      wake_locked(running_.size());  // that lane will move them, though it may not have been wanted until now
      return;
    }
    const std::vector<std::shared_ptr<TransferImpl>> all = unsettled_;
    for (const auto& transfer : all) {
      if (drop_queued_locked(transfer, why)) drained.push_back(transfer);
    }
  }
  for (const auto& transfer : drained) settle(transfer);
}

void LanePool::set_rail_open(std::size_t lane, bool open) {
  std::lock_guard lock(mutex_);
  rail_open_[lane] = open;
}

Deadline LanePool::expire(Clock::time_point now) {
  std::vector<std::shared_ptr<TransferImpl>> drained;
  Deadline nearest = Deadline::max();
  {
    std::lock_guard lock(mutex_);
    const std::vector<std::shared_ptr<TransferImpl>> all = unsettled_;
    for (const auto& transfer : all) {
      if (transfer->deadline() > now) {
        nearest = sooner(nearest, transfer->deadline());
        continue;
      }
      const Status late{Code::kDeadlineExceeded, "the time allowed for the transfer ran out"};
      if (drop_queued_locked(transfer, late)) drained.push_back(transfer);
    }
  }
  for (const auto& transfer : drained) settle(transfer);
  return nearest;
}

PeerStats LanePool::stats() const {
  std::lock_guard lock(mutex_);
  PeerStats out = stats_;
  out.transport = selector_.active();
  return out;
}

}  // namespace kvferry
