// The half of engine/lane_pool.h that knows which idle lane is used: by its own thread, or lent to a caller.
#include <utility>

#include "engine/lane_pool.h"

namespace kvferry {

template <typename Fits>
std::size_t LanePool::nearest_locked(std::size_t lanes, int node, const Fits& fits) const {
  std::size_t nearest = kNoLane;
  int least = 0;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    const Post& post = *posts_[lane];
    if (!post.idle || !fits(post)) continue;
    const int distance = selector_.distance(post.lane.rank(), node);
    if (nearest != kNoLane && distance >= least) continue;
    nearest = lane;
    least = distance;
  }
  return nearest;
}

// An idle lane whose rail the caller may use. None if anything is queued that the lane could move: that comes first.
std::size_t LanePool::lendable_locked(const TransferImpl& transfer, Help help) const {
  const bool small = transfer.plan().small();
  if (help == Help::kCopy && (!small || !transfer.notify().empty())) return kNoLane;
  const auto fits = [&](const Post& post) {
    return !post.lane.wants_other_rail() && (help == Help::kMove || post.lane.rail()->immediate());
  };
  const std::size_t spare = selector_.spare_lane();
  if (queue_.empty()) {
    const std::size_t lane = nearest_locked(spare, transfer.numa_node(), fits);
    if (lane != kNoLane) return lane;
  }
  const bool may_have_spare = small && transfer.priority() != Priority::kLow && !queue_.has_for_spare();
  return may_have_spare && posts_[spare]->idle && fits(*posts_[spare]) ? spare : kNoLane;
}

void LanePool::drive(std::size_t lane, const std::shared_ptr<TransferImpl>& transfer) {
  do {
    posts_[lane]->lane.move();
  } while (take_more(lane, transfer.get()));
  give_back(lane);
}

// The next slice of the same transfer, unless others wait: then the lane's own thread serves all in turn.
bool LanePool::take_more(std::size_t lane, const TransferImpl* transfer) {
  if (transfer->plan().slices().size() == 1) return false;
  const std::lock_guard lock(mutex_);
  Post& post = *posts_[lane];
  if (!stopped_.ok() || !post.open || queue_.empty() || !queue_.holds_only(transfer)) return false;
  take_locked(&post, Clock::now());
  return true;
}

void LanePool::give_back(std::size_t lane) {
  const std::lock_guard lock(mutex_);
  Post& post = *posts_[lane];
  post.lent = false;
  post.idle = stopped_.ok() && !has_work_locked(lane);
  if (!post.idle) post.wake.notify_one();
}

// The spare lane opens its rail after the first of the others, so that it never is the reason for a failure.
bool LanePool::has_work_locked(std::size_t lane) const {
  const Post& post = *posts_[lane];
  if (!post.spare) return !queue_.empty() && lane < selector_.lanes_wanted();
  return post.open ? queue_.has_for_spare() : large_unsettled_ > 0 && any_rail_open_locked();
}

void LanePool::ready_spare_locked() {
  const std::size_t lane = selector_.spare_lane();
  if (!stopped_.ok() || !has_work_locked(lane)) return;
  start_lane_locked(lane);
  Post& post = *posts_[lane];
  if (std::exchange(post.idle, false)) post.wake.notify_one();
}

std::size_t LanePool::wake_locked(std::size_t most, int node) {
  if (most == 0) return 0;
  const std::size_t wanted = selector_.lanes_wanted();
  for (; most > 0; --most) {
    const std::size_t lane = nearest_locked(wanted, node, [](const Post&) { return true; });
    if (lane == kNoLane) break;
    posts_[lane]->idle = false;
    posts_[lane]->wake.notify_one();
  }
  return most;
}

}  // namespace kvferry
