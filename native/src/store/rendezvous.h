// Which node keeps an object's entry of the directory: rendezvous hashing. Every node computes the same from the same
// members, and when one joins or leaves only its share of the objects moves. docs/cluster.md defines it, with vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvferry/node_id.h"
#include "kvferry/object_id.h"

namespace kvferry::store {

// XXH3-64, unseeded, of the 16 bytes of the object id as it is printed, then the 16 bytes of the node id.
std::uint64_t rendezvous_score(const ObjectId& object, const NodeId& node);

// Index in `nodes`, in any order and without doubles, of the node with the highest score; of equal ones the node with
// the highest id. None if there are no nodes.
std::optional<std::size_t> rendezvous_owner(const ObjectId& object, std::span<const NodeId> nodes);
// All indices, the owner's first, then who would own it without the ones before.
std::vector<std::size_t> rendezvous_order(const ObjectId& object, std::span<const NodeId> nodes);

// Names a set of nodes: equal for equal sets, in whatever order, and never 0.
std::uint64_t members_fingerprint(std::span<const NodeId> nodes);

}  // namespace kvferry::store
