// What a policy would have held: requests for chains of blocks, one after the other, on a cache that knows their sizes
// only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvferry/status.h"
#include "store/policy/policy.h"

namespace kvferry::store {

struct ReplayInput {
  std::span<const std::uint64_t> ids;      // the blocks of all requests, each chain from its beginning
  std::span<const std::uint64_t> offsets;  // where each request begins in them, and at last where they end
  std::span<const std::uint64_t> bytes;    // of each of the blocks; an id has the same each time
  bool chained = true;                     // whether the policy is told of each block which one is before it
};

struct ReplayResult {
  std::vector<std::uint64_t> hits;  // for each request: how many of its first blocks were held
  std::uint64_t policy_bytes = 0;   // memory of the policy at the end
  std::uint64_t most_objects = 0;   // held at a time
};

// A request uses the blocks that it finds, then puts those after them, one by one, each after as many victims as it
// takes; it holds its own blocks meanwhile, as the engine that needs them does. A block larger than the capacity, or
// for which no room can be made, is not held. kInvalidArgument if the offsets are not in order.
Result<ReplayResult> replay(PolicyKind kind, std::uint64_t capacity_bytes, const ReplayInput& input);

}  // namespace kvferry::store
