#include "store/node_core.h"

#include <algorithm>

namespace kvferry::store {

bool NodeCore::is_settled(const ClusterView& view) const {
  return std::ranges::all_of(view.links, [&](const auto& link) {
    if (!link->is_up()) return !link->is_unknown();
    return link->settled.load(std::memory_order_acquire) == view.fingerprint;
  });
}

bool NodeCore::is_authoritative(const ClusterView& view, const ObjectId& id) const {
  if (view.members.size() == 1) return view.has_self;
  return view.owner(id)->is_self && is_settled(view) && pulse.vouches();
}

bool NodeCore::hears_all(const ClusterView& view, const ObjectId& id) const {
  return is_authoritative(view, id) && std::ranges::all_of(view.links, [](const auto& link) { return link->is_up(); });
}

std::vector<std::span<const std::byte>> NodeCore::readable(const std::vector<Place>& places) const {
  std::vector<std::span<const std::byte>> out;
  for (const Place& place : places) out.emplace_back(memory(place));
  return out;
}

std::vector<std::span<std::byte>> NodeCore::writable(const std::vector<Place>& places) const {
  std::vector<std::span<std::byte>> out;
  for (const Place& place : places) out.push_back(memory(place));
  return out;
}

}  // namespace kvferry::store
