// What the puts under way are of: LocalStore knows them by number only, and the directory must be told. Thread-safe.
#pragma once

#include <mutex>
#include <optional>
#include <unordered_map>

#include "store/local_store.h"

namespace kvferry::store {

class PutLedger {
 public:
  struct Put {
    Session session = 0;
    ObjectId id;
    std::uint64_t bytes = 0;
    std::uint32_t replicas = 1;
    bool extra = false;
  };
  void add(PutId put, const Put& what) {
    const std::lock_guard lock(mutex_);
    puts_[put] = what;
  }
  // Only what the session itself reserved.
  std::optional<Put> take(Session session, PutId put) {
    const std::lock_guard lock(mutex_);
    const auto found = puts_.find(put);
    if (found == puts_.end() || found->second.session != session) return std::nullopt;
    const Put out = found->second;
    puts_.erase(found);
    return out;
  }
  void end_session(Session session) {
    const std::lock_guard lock(mutex_);
    std::erase_if(puts_, [&](const auto& one) { return one.second.session == session; });
  }

 private:
  std::mutex mutex_;
  std::unordered_map<PutId, Put> puts_;  // guarded by mutex_
};

}  // namespace kvferry::store
