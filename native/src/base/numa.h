// NUMA nodes of this host: which there are, where memory should lie, where threads should run. By sysfs and raw system
// calls, no library. On a host with one node nothing here has an effect.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kvferry/status.h"

namespace kvferry {

// "0-3,8" -> {0, 1, 2, 3, 8}, as the kernel writes CPUs and nodes. nullopt if it is nothing of the kind.
std::optional<std::vector<int>> parse_id_list(std::string_view text);

// Nodes that have memory; {0} where the kernel does not tell. Ascending.
std::vector<int> numa_nodes();

// Where the pages of a range should come from. Preferences, not limits: other nodes serve when these are full.
struct NumaPlacement {
  enum class Kind : std::uint8_t { kDefault, kPreferred, kInterleaved };
  Kind kind = Kind::kDefault;
  int node = 0;  // of kPreferred
  bool operator==(const NumaPlacement&) const = default;
};

// What two options ask for. Off, or a host with one node: kDefault; with a preferred node: that one; else interleaved
// over all. kInvalidArgument if `preferred` (-1: none) is not among several `nodes`.
Result<NumaPlacement> numa_placement(bool aware, int preferred, const std::vector<int>& nodes);

// For pages of [data, data + length) that are not there yet; `data` is at the start of a page. Kept by shared memory
// itself, so it holds for every process. Failures matter to speed alone: they come back to be logged.
Status place_memory(void* data, std::uint64_t length, const NumaPlacement& placement);
// The node that holds the page of `address`; nullopt if there is no page or the kernel does not tell.
std::optional<int> numa_node_of(const void* address);
// The node that holds a whole range, as far as a few of its pages tell; nullopt if that is not one node, or not known.
std::optional<int> numa_node_of(const void* data, std::uint64_t length);
// Lets the calling thread run on the node's CPUs only. kUnsupported if the node has none that this process may use.
Status run_on_node(int node);

}  // namespace kvferry
