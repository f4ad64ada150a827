// What other owners removed lately, and told this node in case they die: it would own the ids then. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kvferry/node_id.h"
#include "store/recent_ids.h"

namespace kvferry::store {

struct Removal {
  ObjectId id;
  Clock::time_point when;
  bool again = false;  // it was put since
};

class KeptRemovals {
 public:
  void keep(const NodeId& owner, const ObjectId& id, Clock::time_point when);
  void keep_as_put_again(const NodeId& owner, const ObjectId& id, Clock::time_point when);
  bool forget(const ObjectId& id);         // it was put again; whether it was kept
  bool is_gone(const ObjectId& id) const;  // it is kept, and was not put again
  void forget_of(const NodeId& owner);     // it tells them anew, or what it told may be out of date
  // Those of owners of that kind, which are forgotten here.
  std::vector<Removal> take(const std::function<bool(const NodeId&)>& kind);
  void forget_before(Clock::time_point oldest);
  std::uint64_t memory_bytes() const;

 private:
  static constexpr std::size_t kMost = 1u << 18;  // of one owner: as many as it remembers itself
  struct OfOne {
    RecentIds gone{kMost}, again{kMost};
  };
  OfOne& of_locked(const NodeId& owner);
  bool forget_locked(const ObjectId& id);

  mutable std::mutex mutex_;
  std::map<NodeId, std::unique_ptr<OfOne>> by_owner_;  // guarded by mutex_
};

}  // namespace kvferry::store
