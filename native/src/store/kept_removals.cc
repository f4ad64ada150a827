#include "store/kept_removals.h"

#include <algorithm>

namespace kvferry::store {

KeptRemovals::OfOne& KeptRemovals::of_locked(const NodeId& owner) {
  auto& kept = by_owner_[owner];
  if (!kept) kept = std::make_unique<OfOne>();
  return *kept;
}

void KeptRemovals::keep(const NodeId& owner, const ObjectId& id, Clock::time_point when) {
  const std::lock_guard lock(mutex_);
  of_locked(owner).gone.put(id, when);
}

void KeptRemovals::keep_as_put_again(const NodeId& owner, const ObjectId& id, Clock::time_point when) {
  const std::lock_guard lock(mutex_);
  (void)forget_locked(id);
  of_locked(owner).again.put(id, when);
}

bool KeptRemovals::forget_locked(const ObjectId& id) {
  bool known = false;
  for (const auto& [owner, kept] : by_owner_) known = kept->gone.erase(id) || known;
  return known;
}

bool KeptRemovals::forget(const ObjectId& id) {
  const std::lock_guard lock(mutex_);
  return forget_locked(id);
}

bool KeptRemovals::is_gone(const ObjectId& id) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(by_owner_, [&](const auto& one) { return one.second->gone.find(id).has_value(); });
}

void KeptRemovals::forget_of(const NodeId& owner) {
  const std::lock_guard lock(mutex_);
  by_owner_.erase(owner);
}

std::vector<Removal> KeptRemovals::take(const std::function<bool(const NodeId&)>& kind) {
  const std::lock_guard lock(mutex_);
  std::vector<Removal> out;
  std::erase_if(by_owner_, [&](const auto& one) {
    if (!kind(one.first)) return false;
    for (const auto& [id, when] : one.second->gone.all()) out.push_back({id, when, false});
    for (const auto& [id, when] : one.second->again.all()) out.push_back({id, when, true});
    return true;
  });
  return out;
}

void KeptRemovals::forget_before(Clock::time_point oldest) {
  const std::lock_guard lock(mutex_);
  for (const auto& [owner, kept] : by_owner_) {
    kept->gone.forget_before(oldest);
    kept->again.forget_before(oldest);
  }
}

std::uint64_t KeptRemovals::memory_bytes() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t sum = 0;
  for (const auto& [owner, kept] : by_owner_) sum += kept->gone.memory_bytes() + kept->again.memory_bytes();
  return sum;
}

}  // namespace kvferry::store
