// This node's shard of the directory: which members hold the ids that it owns, and what was removed lately. What this
// node itself holds is not in it: LocalStore knows. Thread-safe; no call waits for anything but a short lock.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvferry/object_id.h"
#include "kvferry/store.h"
#include "kvferry/types.h"
#include "store/directory_table.h"
#include "store/kept_removals.h"
#include "store/recent_ids.h"

namespace kvferry::store {

using HolderIndex = std::uint16_t;  // of a node, given by HolderNames

struct Location {
  std::uint64_t bytes = 0;
  ContentDigest digest;
  std::uint32_t replicas = 1;  // wanted
  std::vector<HolderIndex> holders;
  std::uint16_t told = 0;  // another one with each announcement
};

class Directory {
 public:
  enum class Added { kTaken, kConflict, kRemoved };
  struct Said {
    Added added = Added::kTaken;
    std::uint32_t holders = 0;  // in the table now
    bool again = false;         // fresh, and it had been removed
  };
  struct Announced {
    ObjectId id;
    ContentDigest digest;
    std::uint64_t bytes = 0;
    std::uint32_t replicas = 1;
    bool fresh = false;  // just put: what was removed before may be there again
    bool alone = false;  // fresh, and taken without the word of all: who was away may hand over older removals of it
  };
  // Digest of what this node holds, asked under the lock of the id's part of the table: must not call back.
  using OwnDigest = std::function<std::optional<ContentDigest>(const ObjectId&)>;

  explicit Directory(OwnDigest own) : own_(std::move(own)) {}

  Said announce(const Announced& object, HolderIndex holder);
  // Runs `commit`, unless other bytes are known under that id or it was removed and is not fresh: then false. Nobody
  // else's bytes become known meanwhile.
  Said claim(const Announced& object, const std::function<void()>& commit);
  // This node, the owner, holds them: that they were removed before is over.
  void put_again(std::span<const ObjectId> ids);
  void retract(const ObjectId& id, HolderIndex holder);
  // Not if anybody has announced it since `told` was found.
  void retract_if_unchanged(const ObjectId& id, HolderIndex holder, std::uint16_t told);
  std::optional<Location> find(const ObjectId& id) const;
  bool contains(const ObjectId& id) const;
  bool is_removed(const ObjectId& id) const;  // and was not put since
  struct Removed {
    std::vector<HolderIndex> holders;  // who held it
    bool again = false;                // it had been removed before, and was not put since
  };
  // Forgets it and remembers that.
  Removed remove(const ObjectId& id, Clock::time_point now);
  // It was removed when another node was the owner. Runs `drop`, before anybody can put it anew, and returns who said
  // that he holds it. nullopt: it was put here since.
  std::optional<std::vector<HolderIndex>> take_over(const Removal& removal, const std::function<void()>& drop);

  void drop_holder(HolderIndex holder);
  // Takes out what `keep` does not want, e.g. because another node owns it now.
  void retain(const std::function<bool(const ObjectId&)>& keep);
  void for_each(const std::function<void(const ObjectId&, const Location&)>& visit) const;

  std::uint64_t entries() const;
  std::uint64_t memory_bytes() const;
  void expire_tombstones(Clock::time_point now);
  // What was removed lately is of this kind, be it put again or not; oldest first in each part. And forgets that,
  // unless it was removed once more.
  std::vector<Removal> removed(const std::function<bool(const ObjectId&)>& kind) const;
  void forget_removed(std::span<const Removal> removals);
  // What was removed, or put again after that, since the last call, in order.
  std::vector<Removal> take_changes();
  bool has_changes() const;
  // What the owners of other ids removed: what is put here is taken out of it.
  KeptRemovals& kept() { return kept_; }

 private:
  static constexpr std::size_t kShards = 64;
  static constexpr std::size_t kMaxTombstones = 4096;  // per shard; the oldest go first, sooner than kRememberRemoved
  static constexpr std::size_t kMaxPutAlone = 4096;    // per shard
  static constexpr std::chrono::minutes kRememberRemoved{10};

  struct Shard {
    mutable std::mutex mutex;
    DirectoryTable table;                                         // guarded by mutex, as is what follows
    std::uint16_t told = 0;                                       // announcements so far, as far as 16 bits count
    std::unordered_map<ObjectId, std::vector<HolderIndex>> more;  // holders beyond those of the entry
    std::unordered_map<ObjectId, Clock::time_point> removed;
    std::deque<std::pair<Clock::time_point, ObjectId>> removals;  // oldest first; also of ids that were put again
    RecentIds put_alone{kMaxPutAlone};
  };
  Shard& shard(const ObjectId& id) { return shards_[id.hi % kShards]; }
  const Shard& shard(const ObjectId& id) const { return shards_[id.hi % kShards]; }
  bool forget_removal_locked(Shard& part, const Announced& object);
  Added check_locked(Shard& part, const Announced& object, const HolderEntry* entry) const;
  static bool drop_locked(Shard& part, HolderEntry& entry, HolderIndex holder);
  static std::vector<HolderIndex> take_out_locked(Shard& part, const ObjectId& id);
  void note_removed_locked(Shard& part, const Removal& removal);
  void note_change(const Removal& change);
  static void forget_oldest_locked(Shard& part);
  static Location location_of(const Shard& part, const HolderEntry& entry);

  const OwnDigest own_;
  std::array<Shard, kShards> shards_;
  KeptRemovals kept_;
  mutable std::mutex changes_mutex_;  // taken after a shard's
  std::vector<Removal> changes_;      // guarded by changes_mutex_
};

}  // namespace kvferry::store
