// Arenas of a peer of this host as mapped in this process. They stay mapped as long as the object lives, also when the
// peer is lost or takes them back (what is found there then is anybody's guess, but no fault). Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <span>

#include "memory/arena.h"
#include "transport/shm/attachment.h"
#include "transport/transport.h"

namespace kvferry {

class PeerMemory {
 public:
  PeerMemory(const LocalNode& local, PeerContext peer) : local_(local), peer_(std::move(peer)) {}

  // kUnsupported: the peer is not on this host, or the region is no arena. Else as the attachment has it.
  Result<std::span<std::byte>> map(RegionKey key, Deadline deadline);
  std::optional<pid_t> owner() const;  // nullopt: nothing was mapped yet

 private:
  Status attach_locked(const Wait& wait);

  const LocalNode& local_;
  const PeerContext peer_;
  mutable std::mutex mutex_;              // held while the peer is asked, which others may wait for
  std::optional<Attachment> attachment_;  // guarded by mutex_, as is what follows
  std::optional<pid_t> owner_;
  struct Mapped {
    Arena arena;
    std::span<std::byte> region;
  };
  std::map<RegionKey, Mapped> mapped_;
};

}  // namespace kvferry
