#include "topology/numa_distances.h"

#include <algorithm>
#include <cstddef>

namespace kvferry {

NumaDistances::NumaDistances(const Topology& machine) {
  for (const NumaNode& from : machine.nodes) {
    const std::size_t count = std::min(from.distances.size(), machine.nodes.size());
    for (std::size_t i = 0; i < count; ++i) known_[{from.id, machine.nodes[i].id}] = from.distances[i];
  }
}

int NumaDistances::between(int a, int b) const {
  const auto found = known_.find({a, b});
  if (found != known_.end()) return found->second;
  return a >= 0 && a == b ? kLocal : kUnknown;
}

}  // namespace kvferry
