// What all parts of one node share.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "store/cluster.h"
#include "store/directory.h"
#include "store/local_store.h"
#include "store/node_counters.h"
#include "store/pending_claims.h"
#include "store/pulse.h"
#include "store/put_ledger.h"
#include "store/rpc.h"
#include "store/sessions.h"

namespace kvferry::store {

struct NodeCore {
  static constexpr std::size_t kMostPutAgain = 1u << 16, kMostDropped = 1u << 16;
  explicit NodeCore(NodeOptions node_options)
      : options(std::move(node_options)),
        pulse(options.suspect_after),
        directory([this](const ObjectId& id) { return own_digest(id); }) {}

  const NodeOptions options;
  Pulse pulse;
  Member self;  // complete before `ready`, like all that has no comment
  NodeCounters counters;
  HolderNames names;
  Directory directory;
  PutLedger puts;
  PendingClaims claims;
  // Put here after they had been removed: whoever missed that may say so.
  RecentIds put_again{kMostPutAgain};
  // Removed here by the word of an owner: copies that are on their way do not count any more.
  RecentIds dropped{kMostDropped};
  std::unique_ptr<RpcEndpoint> rpc;
  std::unique_ptr<LocalStore> store;
  std::unique_ptr<Sessions> sessions;
  std::unique_ptr<Cluster> cluster;
  std::vector<RegionInfo> arenas;
  RegionInfo index, pins;
  std::vector<std::span<std::byte>> arena_memory;
  std::span<std::byte> index_memory, pins_memory;

  std::mutex members_mutex;  // one change of members at a time, and nothing that must see none

  std::atomic<bool> ready{false};     // requests may be served
  std::atomic<bool> draining{false};  // no puts any more

  // This node owns the id, and all members that answer have told it what they hold: what it does not know is nowhere.
  bool is_authoritative(const ClusterView& view, const ObjectId& id) const;
  bool is_settled(const ClusterView& view) const;
  // This node owns the id, and all members are up and have told it all: nobody acts as its owner instead.
  bool hears_all(const ClusterView& view, const ObjectId& id) const;
  // OK: nothing is known against a copy of it, read at a holder that was asked at that time.
  Status may_copy(const ObjectId& id, Clock::time_point asked) const;
  std::span<std::byte> memory(const Place& place) const {
    return arena_memory[place.arena].subspan(place.offset, place.length);
  }
  std::vector<std::span<const std::byte>> readable(const std::vector<Place>& places) const;
  std::vector<std::span<std::byte>> writable(const std::vector<Place>& places) const;

 private:
  std::optional<ContentDigest> own_digest(const ObjectId& id) const {
    const auto held = store->find(id);
    if (!held) return std::nullopt;
    return held->digest;
  }
};

}  // namespace kvferry::store
