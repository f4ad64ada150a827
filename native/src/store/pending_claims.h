// Objects that this node has announced, or is announcing, and has not made visible yet. Asked what it holds it names
// them, too: the owner must not take what it was just told for out of date. Thread-safe.
#pragma once

#include <mutex>
#include <optional>
#include <unordered_map>

#include "store/local_store.h"

namespace kvferry::store {

class PendingClaims {
 public:
  void add(const ObjectId& id, const Held& held) {
    const std::lock_guard lock(mutex_);
    claims_.emplace(id, held);
  }
  void remove(const ObjectId& id, const ContentDigest& digest) {
    const std::lock_guard lock(mutex_);
    const auto [first, last] = claims_.equal_range(id);
    for (auto claim = first; claim != last; ++claim) {
      if (claim->second.digest != digest) continue;
      claims_.erase(claim);
      return;
    }
  }
  std::optional<Held> find(const ObjectId& id) const {
    const std::lock_guard lock(mutex_);
    const auto claim = claims_.find(id);
    if (claim == claims_.end()) return std::nullopt;
    return claim->second;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_multimap<ObjectId, Held> claims_;  // guarded by mutex_
};

}  // namespace kvferry::store
