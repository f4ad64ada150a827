// Sees to it that objects have the replicas that were wanted: asks further members, on hosts that have none yet, to
// fetch them. Thread-safe; waits for those members, until the deadline.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "store/fetcher.h"

namespace kvferry::store {

struct Wanting {
  ObjectId id;
  std::uint32_t wanted = 1;
  std::vector<NodeId> holders;  // now; the first one that is up is fetched from. Grows.
};

class Replicator {
 public:
  Replicator(NodeCore& core, Fetcher& fetcher) : core_(core), fetcher_(fetcher) {}

  // How many replicas were made.
  std::uint64_t replicate(std::span<Wanting> objects, Deadline deadline);
  // Has one member, or this node itself, fetch what `source` holds. One status per id.
  std::vector<Status> send_to(const std::shared_ptr<MemberLink>& target, const NodeId& source,
                              std::span<const ObjectId> ids, const FetchOptions& options, Deadline deadline);

 private:
  std::shared_ptr<MemberLink> next_target(const ClusterView& view, const Wanting& object,
                                          std::span<const NodeId> tried) const;
  NodeCore& core_;
  Fetcher& fetcher_;
};

}  // namespace kvferry::store
