// How far the NUMA nodes of this host are from each other. Constant; thread-safe.
#pragma once

#include <map>
#include <utility>

#include "kvferry/topology.h"

namespace kvferry {

class NumaDistances {
 public:
  static constexpr int kLocal = 10, kUnknown = 20;  // as firmware has it: 20 is another node, if nothing else is said

  NumaDistances() = default;  // knows none
  explicit NumaDistances(const Topology& machine);

  // -1 for either: unknown.
  int between(int a, int b) const;

 private:
  std::map<std::pair<int, int>, int> known_;
};

}  // namespace kvferry
