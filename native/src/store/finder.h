// Where objects are, as far as the whole cluster knows. Thread-safe.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "store/node_core.h"

namespace kvferry::store {

struct Found {
  std::uint64_t bytes = 0;
  ContentDigest digest;
  std::uint32_t replicas = 1;
  std::vector<NodeId> holders;  // those that answer first; this node before all others
};

struct Reply {  // of a member that holds it, or is about to
  NodeId node;
  Held held;
  bool pending = false;  // announced and not visible yet
};

class Finder {
 public:
  explicit Finder(NodeCore& core) : core_(core) {}

  // What this node holds or its shard of the directory has. Waits for nobody.
  std::optional<Found> here(const ClusterView& view, const ObjectId& id) const;
  bool is_here(const ObjectId& id) const { return core_.store->find(id) || core_.directory.contains(id); }
  // Asks the owners; members that all else fails.
  std::vector<std::optional<Found>> locate(std::span<const ObjectId> ids, Deadline deadline);
  // Asks all members that are up what they hold, this node included.
  std::vector<std::optional<Found>> everywhere(const ClusterView& view, std::span<const ObjectId> ids,
                                               Deadline deadline);
  // The same, and takes out of the directory what nobody holds any more: a holder's word that it let go may be late.
  std::vector<std::vector<Reply>> verify(const ClusterView& view, std::span<const ObjectId> ids, Deadline deadline);
  // Ids of `ids` for which here() says nothing and that may be somewhere nevertheless.
  std::vector<std::size_t> doubtful(const ClusterView& view, std::span<const ObjectId> ids) const;

 private:
  // `silent`: those that did not answer.
  std::vector<std::vector<Reply>> replies(const ClusterView& view, std::span<const ObjectId> ids, Deadline deadline,
                                          std::vector<NodeId>& silent);
  void ask_all(const ClusterView& view, std::span<const ObjectId> ids, std::span<std::vector<Reply>> replies,
               Deadline deadline, std::vector<NodeId>& silent);
  std::vector<std::size_t> ask_owners(const ClusterView& view, std::span<const ObjectId> ids,
                                      std::span<const std::size_t> wanted, std::span<std::optional<Found>> found,
                                      Deadline deadline);
  NodeCore& core_;
};

}  // namespace kvferry::store
