// Which of our addresses talks to which of the peer's. Pure.
#pragma once

#include <vector>

#include "kvferry/endpoint.h"
#include "transport/greeting.h"
#include "transport/transport.h"

namespace kvferry {

// Pairs that use every address of both sides, if possible each once; best first: of one network, then the faster ones.
// If some pair is of one network, those that are not are left out. `endpoint` is the peer's when it told no rails; one
// pair without a choice has no name. Never empty.
std::vector<Path> pair_rails(const std::vector<LocalRail>& ours, const std::vector<PeerRail>& theirs,
                             const Endpoint& endpoint);

}  // namespace kvferry
