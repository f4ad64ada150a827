// Which local addresses carry data: the options `rails` and `device` against what the machine has.
#pragma once

#include <vector>

#include "kvferry/engine.h"
#include "kvferry/topology.h"
#include "transport/greeting.h"

namespace kvferry {

// Addresses with port 0, those on the preferred NUMA node first; none if neither option is set: then data goes over the
// bind address alone. kInvalidArgument with the option's name, what is wrong and what to do.
Result<std::vector<LocalRail>> local_rails(const EngineOptions& options, const Endpoint& bind, const Topology& machine);

}  // namespace kvferry
