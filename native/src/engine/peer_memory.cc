#include "engine/peer_memory.h"

#include <utility>

#include "memory/address_range.h"
#include "transport/shm/shm_transport.h"

namespace kvferry {

Status PeerMemory::attach_locked(const Wait& wait) {
  if (attachment_ && !attachment_->hung_up()) return {};
  attachment_.reset();
  KVF_ASSIGN_OR_RETURN(const Endpoint endpoint, same_host_listener(peer_));
  KVF_ASSIGN_OR_RETURN(Attachment opened, Attachment::open(local_, peer_.node_id, endpoint, wait));
  owner_ = opened.pid();
  attachment_.emplace(std::move(opened));
  return {};
}

std::optional<pid_t> PeerMemory::owner() const {
  const std::lock_guard lock(mutex_);
  return owner_;
}

Result<std::span<std::byte>> PeerMemory::map(RegionKey key, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  const auto known = mapped_.find(key);
  if (known != mapped_.end()) return known->second.region;
  const Wait wait{deadline, peer_.stop};
  KVF_RETURN_IF_ERROR(attach_locked(wait));
  KVF_ASSIGN_OR_RETURN(const DirectoryEntry entry, attachment_->directory().resolve(key, 0, 0, Op::kRead));
  if (entry.arena_index == 0) {
    return {Code::kUnsupported, "region " + std::to_string(key.id) + " is not in an arena of its owner's"};
  }
  auto arena = attachment_->fetch_arena(entry, wait);
  if (!arena.ok()) {
    attachment_.reset();  // an exchange that was cut short leaves a connection that is of no more use
    return arena.status();
  }
  if (!range_fits(entry.arena_offset, entry.length, arena->length())) {
    return {Code::kProtocolError, "a region leaves its arena"};
  }
  const std::span<std::byte> region(arena->data() + entry.arena_offset, entry.length);
  mapped_.emplace(key, Mapped{*std::move(arena), region});
  return region;
}

}  // namespace kvferry
