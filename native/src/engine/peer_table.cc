#include "engine/peer_table.h"

#include <algorithm>

#include "engine/peer.h"

namespace kvferry {
namespace {

constexpr std::size_t kLostKept = 256;

}  // namespace

bool PeerTable::add(const std::shared_ptr<PeerImpl>& peer) {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  peers_.emplace(peer->handle(), peer);
  return true;
}

bool PeerTable::remove(const PeerImpl& peer) {
  std::string who = peer.name() + " is lost: " + peer.status().message();
  std::shared_ptr<PeerImpl> removed;  // destroyed after the lock is gone
  std::lock_guard lock(mutex_);
  auto it = peers_.find(peer.handle());
  if (it == peers_.end()) return false;
  removed = std::move(it->second);
  peers_.erase(it);
  lost_.emplace(peer.handle(), std::move(who));
  if (lost_.size() > kLostKept) lost_.erase(lost_.begin());
  return true;
}

Status PeerTable::missing(std::uint64_t handle) const {
  const std::lock_guard lock(mutex_);
  const auto known = lost_.find(handle);
  const std::string number = "peer " + std::to_string(handle);
  if (known == lost_.end()) return {Code::kNotFound, "there is no " + number + "; it may have been lost long ago"};
  return {Code::kNotFound, number + ", " + known->second};
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
