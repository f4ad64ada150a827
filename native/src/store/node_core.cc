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

// The owner remembers what was removed, and refuses copies of it. But just while members come and go another one may be
// the owner by now, which is told a little later; and the holder may have been asked before it was told to drop it.
Status NodeCore::may_copy(const ObjectId& id, Clock::time_point asked) const {
  const auto when = dropped.find(id);
  if (!when) return {};
  if (*when >= asked) return {Code::kNotFound, "it was removed while it was being copied"};
  const auto view = cluster->view();
  const milliseconds patience = cluster->patience();
  const bool changing = !is_settled(*view) || Clock::now() - view->since < 3 * patience;
  if (!changing || asked - *when > patience) return {};
  return {Code::kUnavailable, "it was removed just now, and not all members may have heard of it"};
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
