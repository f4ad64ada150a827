#include "engine/lane_pool.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"

namespace kvferry {
namespace {

constexpr std::uint32_t kMaxAttempts = 5;  // two on a transport until it is set aside, two on the next, one to spare

// Why a run failed that is not tried again. What every path would say comes first.
Status reason_locked(const TransferImpl& transfer, const Status& result, bool late) {
  if (is_final(result.code())) return result;
  if (transfer.stop_flag().load()) return transfer.abort_reason_locked();
  if (!late || result.code() == Code::kDeadlineExceeded) return result;
  return {Code::kDeadlineExceeded, "no time was left for another try: " + result.message()};
}

}  // namespace

LanePool::LanePool(std::vector<Transport*> ranked, PeerContext peer, const EngineOptions& options, Counters& counters,
                   Hooks hooks)
    : slice_bytes_(options.slice_bytes),
      min_slice_bytes_(ranked.front()->min_slice_bytes()),
      connect_timeout_(options.connect_timeout),
      counters_(counters),
      hooks_(std::move(hooks)),
      selector_(ranked, std::move(peer), counters) {
  for (std::size_t lane = 0; lane <= selector_.spare_lane(); ++lane) {
    posts_.push_back(std::make_unique<Post>(*this, lane, lane == selector_.spare_lane()));
  }
}

Status LanePool::enqueue(const std::shared_ptr<TransferImpl>& transfer, Help help) {
  std::size_t borrowed = kNoLane;
  {
    const std::lock_guard lock(mutex_);
    if (!stopped_.ok()) return stopped_;
    borrowed = lendable_locked(*transfer, help);
    if (borrowed == kNoLane) {
      start_lanes_locked();
      if (!posts_[0]->started) return {Code::kResourceExhausted, "cannot start a thread for this peer"};
    }
    const Clock::time_point now = Clock::now();
    transfer->enqueued_locked(now);
    transfer->unsettled_place = unsettled_.size();
    unsettled_.push_back(transfer);
    if (!transfer->plan().small()) ++large_unsettled_;
    queue_.push(transfer);
    std::size_t helpers = transfer->plan().slices().size();
    if (borrowed != kNoLane) {
      posts_[borrowed]->idle = false;
      posts_[borrowed]->lent = true;
      take_locked(posts_[borrowed].get(), now);
      --helpers;
    }
    if (wake_locked(helpers, transfer->numa_node()) > 0) ready_spare_locked();
  }
  if (borrowed != kNoLane) drive(borrowed, transfer);
  return {};
}

void LanePool::start_lanes_locked() {
  const std::size_t wanted = std::min(selector_.lanes_wanted(), posts_.size());
  for (std::size_t lane = 0; lane < wanted && stopped_.ok(); ++lane) start_lane_locked(lane);
}

void LanePool::start_lane_locked(std::size_t lane) {
  Post& post = *posts_[lane];
  if (post.started) return;
  const std::string name = post.spare ? "small" : std::to_string(lane);
  post.started = hooks_.spawn("kvf-lane-" + name, [&post] { post.lane.run(); }).ok();
}

bool LanePool::any_rail_open_locked() const {
  return std::any_of(posts_.begin(), posts_.end(), [](const auto& post) { return post->open && !post->spare; });
}

bool LanePool::wait_for_work(std::size_t lane, Clock::time_point not_before) {
  std::unique_lock lock(mutex_);
  Post& self = *posts_[lane];
  for (;;) {
    if (!stopped_.ok()) return false;
    if (has_work_locked(lane)) {
      if (Clock::now() >= not_before || !any_rail_open_locked()) return true;
      self.wake.wait_until(lock, not_before);  // another lane is at it; this one is not idle but out of order
      continue;
    }
    self.idle = true;
    self.wake.wait(lock, [&] { return !self.idle && !self.lent; });
  }
}

SliceShape LanePool::slice_shape() const {
  return {slice_bytes_, std::min(selector_.lanes_wanted(), posts_.size()), min_slice_bytes_};
}

void LanePool::take_locked(Post* post, Clock::time_point now) {
  Slice* const slice = post->lane.slice();
  post->spare ? queue_.take_for_spare(slice) : queue_.take(slice);
  post->rail = post->lane.rail();
  post->transfer = slice->transfer.get();
  if (slice->attempts == 0) slice->transfer->add_pending_locked();
  slice->transfer->taken_locked(post->rail->transport(), now);
}

bool LanePool::take(std::size_t lane) {
  const std::lock_guard lock(mutex_);
  const bool found = posts_[lane]->spare ? queue_.has_for_spare() : !queue_.empty();
  if (!stopped_.ok() || !found) return false;
  take_locked(posts_[lane].get(), Clock::now());
  if (queue_.has_for_spare()) ready_spare_locked();  // what this lane was woken for, if another class came first
  return true;
}

// Returns true if a part of the slice should be tried again; then the slice holds that part.
bool LanePool::record_results_locked(Slice* slice, const Status& rail_status) {
  TransferImpl& transfer = *slice->transfer;
  const bool aborted = transfer.stop_flag().load();
  const bool late = expired(transfer.deadline());
  const bool may_retry = !rail_status.ok() && !aborted && stopped_.ok() && slice->attempts + 1 < kMaxAttempts && !late;
  const bool retry = slice->reduce([&](std::size_t place) {
    const Status& result = slice->results[place];
    if (result.ok()) return false;
    const bool final = is_final(result.code());
    if (may_retry && !final) return true;
    if (result.message().find(kMayStillLand) != std::string::npos) transfer.warn_locked(result.message());
    transfer.fail_run_locked(slice->run_at(place), reason_locked(transfer, result, late));
    return false;
  });
  if (retry) ++slice->attempts;
  return retry;
}

void LanePool::finish(std::size_t lane, const Status& outcome, bool rail_broke) {
  std::shared_ptr<TransferImpl> drained;
  Post& post = *posts_[lane];
  Slice& slice = *post.lane.slice();
  const bool reads = slice.batch.op == Op::kRead;
  const std::uint64_t bytes = slice.moved_bytes();
  const std::string_view transport = post.lane.rail()->transport();
  counters_.add(reads ? Counters::kReadBytes : Counters::kWrittenBytes, bytes);
  counters_.add(Counters::bytes_by(transport), bytes);
  {
    const std::lock_guard lock(mutex_);
    post.rail = nullptr;
    post.transfer = nullptr;
    traffic_.slice_moved(transport, slice.batch.op, bytes);
    if (rail_broke) traffic_.rail_failed(transport);
    const bool cut = slice.transfer->was_cut_locked();  // others know by now that it failed
    if (!cut && record_results_locked(&slice, outcome)) {
      traffic_.slice_retried(transport);
      counters_.add(Counters::kRetriedSlices);
      queue_.push_rest(std::move(slice));
      wake_locked(posts_.size());
    } else if (!cut) {
      slice.transfer->drop_pending_locked();
      if (slice.transfer->drained_locked()) {
        drained = std::move(slice.transfer);
        forget_locked(*drained);
      }
    }
    slice.clear();
  }
  if (drained) settle(drained);
}

void LanePool::settle(const std::shared_ptr<TransferImpl>& transfer) {
  // Nobody else knows the transfer any more, so its scheduling state is ours without the mutex.
  transfer->moved(Clock::now());
  Status notified;
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
    traffic_.transfer_ended(*transfer, outcome);
  }
  transfer->publish();
}

void LanePool::settle_all(const Settled& transfers) {
  for (const auto& transfer : transfers) settle(transfer);
}

void LanePool::forget_locked(const TransferImpl& transfer) {
  const std::size_t place = transfer.unsettled_place;
  unsettled_[place] = std::move(unsettled_.back());
  unsettled_[place]->unsettled_place = place;
  unsettled_.pop_back();
  if (!transfer.plan().small()) --large_unsettled_;
}

// Returns true if the transfer is drained by it: the caller settles it.
bool LanePool::drop_queued_locked(const std::shared_ptr<TransferImpl>& transfer, Status why) {
  const std::size_t place = transfer->unsettled_place;
  if (place >= unsettled_.size() || unsettled_[place] != transfer) return false;  // settled, or about to be
  const bool first = transfer->abort_locked(std::move(why));
  queue_.remove(
      transfer.get(), [&](std::uint32_t run) { transfer->fail_run_locked(run, transfer->abort_reason_locked()); },
      [&] { transfer->drop_pending_locked(); });
  for (const auto& post : posts_) {
    if (post->transfer == transfer.get()) post->rail->interrupt();
  }
  if (!transfer->drained_locked()) {
    if (first) hooks_.watch(transfer);
    return false;
  }
  forget_locked(*transfer);
  return true;
}

LanePool::Cut LanePool::cut(const std::shared_ptr<TransferImpl>& transfer) {
  {
    const std::lock_guard lock(mutex_);
    const std::size_t place = transfer->unsettled_place;
    if (place >= unsettled_.size() || unsettled_[place] != transfer) return Cut::kDone;
    const auto moves_it = [&](const auto& post) { return post->transfer == transfer.get(); };
    for (const auto& post : posts_) {
      if (moves_it(post) && !post->rail->asks_gate()) return Cut::kNever;
    }
    transfer->gate().close();
    if (!transfer->gate().quiet()) return Cut::kLater;
    for (const auto& post : posts_) {
      if (moves_it(post)) fail_slice_locked(*post->lane.slice());
    }
    transfer->cut_locked();
    forget_locked(*transfer);
  }
  settle(transfer);
  return Cut::kDone;
}

// The lane still has it, and may write its results.
void LanePool::fail_slice_locked(const Slice& slice) {
  TransferImpl& transfer = *slice.transfer;
  for (std::size_t place = 0; place < slice.batch.runs.size(); ++place) {
    transfer.fail_run_locked(slice.run_at(place), transfer.abort_reason_locked());
  }
  if (slice.batch.op == Op::kRead) return;
  transfer.warn_locked(std::string(kMayStillLand) + "the connection that had them did not end in time");
}

LanePool::Settled LanePool::drop_all_locked(const Status& why) {
  Settled drained;
  const Settled all = unsettled_;
  for (const auto& transfer : all) {
    if (drop_queued_locked(transfer, why)) drained.push_back(transfer);
  }
  return drained;
}

void LanePool::abort(const std::shared_ptr<TransferImpl>& transfer, Status why) {
  bool drained = false;
  {
    const std::lock_guard lock(mutex_);
    drained = drop_queued_locked(transfer, std::move(why));
  }
  if (drained) settle(transfer);
}

void LanePool::stop(const Status& why) {
  Settled drained;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_.ok()) stopped_ = why;
    drained = drop_all_locked(why);
    for (const auto& post : posts_) {
      post->idle = false;
      post->wake.notify_one();
    }
  }
  settle_all(drained);
}

void LanePool::fail_queued(std::size_t lane, const Status& no_rail) {
  if (posts_[lane]->spare) return;  // the others go on
  Settled drained;
  const Status lost = hooks_.liveness();
  const Status& why = lost.ok() ? no_rail : lost;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t other = 0; other < posts_.size(); ++other) {
      if (other == lane || posts_[other]->spare || !posts_[other]->open) continue;
      wake_locked(posts_.size());  // that lane will move them, though it may not have been wanted until now
      return;
    }
    drained = drop_all_locked(why);
  }
  settle_all(drained);
}

void LanePool::rail_opened(std::size_t lane) {
  const std::lock_guard lock(mutex_);
  posts_[lane]->open = true;
  traffic_.rail_opened(posts_[lane]->lane.rail()->transport());
  start_lanes_locked();
  ready_spare_locked();
}

void LanePool::rail_closed(std::size_t lane) {
  const std::lock_guard lock(mutex_);
  posts_[lane]->open = false;
  traffic_.rail_closed(posts_[lane]->lane.rail()->transport());
}

Deadline LanePool::expire(Clock::time_point now) {
  Settled drained;
  Deadline nearest = Deadline::max();
  {
    const std::lock_guard lock(mutex_);
    const Settled all = unsettled_;
    for (const auto& transfer : all) {
      if (transfer->deadline() > now) {
        nearest = sooner(nearest, transfer->deadline());
        continue;
      }
      const Status late{Code::kDeadlineExceeded, "the time allowed for the transfer ran out"};
      if (drop_queued_locked(transfer, late)) drained.push_back(transfer);
    }
  }
  settle_all(drained);
  return nearest;
}

PeerStats LanePool::stats() const {
  const std::lock_guard lock(mutex_);
  PeerStats out = traffic_.snapshot();
  out.transport = selector_.active();
  out.rail_switches = selector_.switches();
  out.unsettled_transfers = unsettled_.size();
  out.queued_slices = queue_.queued_slices();
  out.rails = selector_.rails();
  return out;
}

}  // namespace kvferry
