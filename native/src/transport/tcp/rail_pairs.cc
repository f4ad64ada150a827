#include "transport/tcp/rail_pairs.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "base/subnet.h"

namespace kvferry {
namespace {

struct Pair {
  std::size_t ours;
  std::size_t theirs;
  bool one_network;
  std::uint32_t speed_mbit;  // of the slower end
};

std::vector<Pair> possible_pairs(const std::vector<LocalRail>& ours, const std::vector<PeerRail>& theirs) {
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    for (std::size_t j = 0; j < theirs.size(); ++j) {
      const Endpoint& a = ours[i].endpoint;
      const Endpoint& b = theirs[j].endpoint;
      if (a.family() != b.family() || a.is_loopback() != b.is_loopback()) continue;
      pairs.push_back({i, j, same_subnet(a.host(), b.host(), ours[i].prefix_length),
                       std::min(ours[i].speed_mbit, theirs[j].speed_mbit)});
    }
  }
  const auto one_network = [](const Pair& pair) { return pair.one_network; };
  if (std::any_of(pairs.begin(), pairs.end(), one_network)) {
    std::erase_if(pairs, [&](const Pair& pair) { return !one_network(pair); });
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Pair& a, const Pair& b) { return a.speed_mbit > b.speed_mbit; });
  return pairs;
}

Path path_of(const Pair& pair, const std::vector<LocalRail>& ours, const std::vector<PeerRail>& theirs) {
  const Endpoint from = ours[pair.ours].endpoint.with_port(0);
  const Endpoint& to = theirs[pair.theirs].endpoint;
  return {from.host() + " to " + to.to_string(), from, to, ours[pair.ours].numa_node};
}

}  // namespace

std::vector<Path> pair_rails(const std::vector<LocalRail>& ours, const std::vector<PeerRail>& theirs,
                             const Endpoint& endpoint) {
  std::vector<Path> paths;
  if (ours.empty()) {
    for (const PeerRail& rail : theirs)
      paths.push_back({"to " + rail.endpoint.to_string(), std::nullopt, rail.endpoint, -1});
  } else {
    const std::vector<PeerRail> ends = theirs.empty() ? std::vector<PeerRail>{{endpoint, 0}} : theirs;
    std::vector<std::size_t> used_ours(ours.size()), used_theirs(ends.size());
    std::vector<Pair> pairs = possible_pairs(ours, ends);
    const auto uses = [&](const Pair& pair) { return used_ours[pair.ours] + used_theirs[pair.theirs]; };
    while (!pairs.empty()) {
      const auto best =
          std::min_element(pairs.begin(), pairs.end(), [&](const Pair& a, const Pair& b) { return uses(a) < uses(b); });
      const Pair pair = *best;
      pairs.erase(best);
      if (used_ours[pair.ours] > 0 && used_theirs[pair.theirs] > 0) continue;  // both ends are busy with others
      ++used_ours[pair.ours];
      ++used_theirs[pair.theirs];
      paths.push_back(path_of(pair, ours, ends));
    }
  }
  if (paths.empty()) paths.push_back({"", std::nullopt, endpoint, -1});
  return paths;
}

}  // namespace kvferry
