#include "engine/peer_table.h"

#include <algorithm>

#include "engine/peer.h"

namespace kvferry {

bool PeerTable::add(const std::shared_ptr<PeerImpl>& peer) {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  peers_.emplace(peer->handle(), peer);
  return true;
}

bool PeerTable::remove(std::uint64_t handle) {
  std::shared_ptr<PeerImpl> removed;  // destroyed after the lock is gone
  std::lock_guard lock(mutex_);
  auto it = peers_.find(handle);
  if (it == peers_.end()) return false;
  removed = std::move(it->second);
  peers_.erase(it);
  return true;
}

std::shared_ptr<PeerImpl> PeerTable::find(std::uint64_t handle) const {
  std::lock_guard lock(mutex_);
  auto it = peers_.find(handle);
  return it == peers_.end() ? nullptr : it->second;
}

bool PeerTable::has_node(const NodeId& node) const {
  std::lock_guard lock(mutex_);
  return std::any_of(peers_.begin(), peers_.end(), [&](const auto& entry) { return entry.second->node_id() == node; });
}

std::vector<std::shared_ptr<PeerImpl>> PeerTable::list() const {
  std::vector<std::shared_ptr<PeerImpl>> out;
  std::lock_guard lock(mutex_);
  for (const auto& [handle, peer] : peers_) out.push_back(peer);
  return out;
}

std::vector<std::shared_ptr<PeerImpl>> PeerTable::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  return list();
}

}  // namespace kvferry
