// Ids, and when something happened to each: at most so many, and not for ever. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "kvferry/object_id.h"

namespace kvferry::store {

class RecentIds {
 public:
  explicit RecentIds(std::size_t most) : most_(most) {}

  void put(const ObjectId& id, Clock::time_point when);  // beyond the most, the one that was put first is forgotten
  bool erase(const ObjectId& id);
  void clear();
  std::optional<Clock::time_point> find(const ObjectId& id) const;
  std::vector<std::pair<ObjectId, Clock::time_point>> all() const;
  void forget_before(Clock::time_point oldest);
  std::uint64_t memory_bytes() const;

 private:
  void forget_first_locked();

  const std::size_t most_;
  mutable std::mutex mutex_;
  std::unordered_map<ObjectId, Clock::time_point> times_;       // guarded by mutex_, as is what follows
  std::deque<std::pair<Clock::time_point, ObjectId>> in_turn_;  // as they were put; also of those that were erased
};

}  // namespace kvferry::store
