// The copier's side of same-host access: one attach connection, the owner's region directory, its arenas as mapped
// here. Used by one thread, except fd().
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>

#include "base/socket.h"
#include "kvferry/types.h"
#include "memory/arena.h"
#include "memory/copy_lanes.h"
#include "memory/region_directory.h"
#include "transport/greeting.h"

namespace kvferry {

class Attachment {
 public:
  // Connects to `shm_name`, checks that `owner` answers, and that the kernel lets us into its memory.
  static Result<Attachment> open(const LocalNode& local, const NodeId& owner, const Endpoint& shm_name,
                                 const Wait& wait);

  pid_t pid() const { return pid_; }  // the owner's, as the kernel vouches
  bool hung_up() const { return is_hung_up(fd_.get()); }
  const RegionDirectoryReader& directory() const { return directory_; }
  CopyLanes& lanes() { return lanes_; }

  // Where the region of an arena begins in our mapping of that arena; null if it is not mapped.
  std::byte* mapped_region(RegionKey key) const;
  // Maps it, and unmaps those that the owner took back.
  Result<std::byte*> map_region(const DirectoryEntry& entry, const Wait& wait);
  void forget_region(RegionKey key) { mapped_.erase(key); }
  // The arena of an entry, mapped once more, for whoever keeps it: writable if the region's access says so.
  Result<Arena> fetch_arena(const DirectoryEntry& entry, const Wait& wait);

 private:
  Attachment(UniqueFd fd, pid_t pid, RegionDirectoryReader directory, CopyLanes lanes)
      : fd_(std::move(fd)), pid_(pid), directory_(std::move(directory)), lanes_(std::move(lanes)) {}

  UniqueFd fd_;
  pid_t pid_ = 0;
  RegionDirectoryReader directory_;
  CopyLanes lanes_;
  std::uint64_t last_request_ = 0;
  struct Mapping {
    Arena arena;
    std::byte* region;  // begins here
  };
  std::map<RegionKey, Mapping> mapped_;
};

}  // namespace kvferry
