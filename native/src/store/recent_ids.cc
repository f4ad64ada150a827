#include "store/recent_ids.h"

namespace kvferry::store {

void RecentIds::put(const ObjectId& id, Clock::time_point when) {
  const std::lock_guard lock(mutex_);
  times_[id] = when;
  in_turn_.emplace_back(when, id);
  if (in_turn_.size() > most_) forget_first_locked();
}

bool RecentIds::erase(const ObjectId& id) {
  const std::lock_guard lock(mutex_);
  return times_.erase(id) > 0;
}

void RecentIds::clear() {
  const std::lock_guard lock(mutex_);
  times_.clear();
  in_turn_.clear();
}

std::optional<Clock::time_point> RecentIds::find(const ObjectId& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = times_.find(id);
  if (found == times_.end()) return std::nullopt;
  return found->second;
}

std::vector<std::pair<ObjectId, Clock::time_point>> RecentIds::all() const {
  const std::lock_guard lock(mutex_);
  return {times_.begin(), times_.end()};
}

void RecentIds::forget_before(Clock::time_point oldest) {
  const std::lock_guard lock(mutex_);
  while (!in_turn_.empty() && in_turn_.front().first < oldest) forget_first_locked();
}

std::uint64_t RecentIds::memory_bytes() const {
  constexpr std::uint64_t kMapNode = 64;
  const std::lock_guard lock(mutex_);
  return times_.size() * kMapNode + in_turn_.size() * sizeof(in_turn_.front());
}

void RecentIds::forget_first_locked() {
  const auto [when, id] = in_turn_.front();
  in_turn_.pop_front();
  const auto known = times_.find(id);
  if (known != times_.end() && known->second == when) times_.erase(known);  // else put once more
}

}  // namespace kvferry::store
