// The arenas that an engine allocated for its own regions, by index. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "base/unique_fd.h"
#include "kvferry/status.h"
#include "memory/arena.h"

namespace kvferry {

class ArenaTable {
 public:
  struct Grant {  // what a same-host peer gets
    UniqueFd fd;
    std::uint64_t length = 0;
  };

  // The index (1..kMaxArenas) and the start of the memory. kResourceExhausted if all indices are taken.
  Result<std::pair<std::uint32_t, std::byte*>> add(Arena arena, bool peers_may_write);
  // A descriptor of its own for a peer, read-only unless peers may write. kNotFound.
  Result<Grant> grant(std::uint32_t index) const;
  // Unmaps it here and gives its memory back to the system. Peers may keep their mapping for a while; it costs nothing.
  void remove(std::uint32_t index);

 private:
  struct Entry {
    Arena arena;
    bool peers_may_write = false;
  };
  mutable std::mutex mutex_;
  std::map<std::uint32_t, Entry> entries_;  // guarded by mutex_
  std::uint32_t last_index_ = 0;            // guarded by mutex_
};

// A second, read-only open file on the same memory, so that whoever gets it cannot map it writable. kInternal.
Result<UniqueFd> reopen_read_only(int fd);

}  // namespace kvferry
