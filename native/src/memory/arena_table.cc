#include "memory/arena_table.h"

#include <fcntl.h>

#include <cerrno>
#include <string>

#include "base/limits.h"

namespace kvferry {

Result<UniqueFd> reopen_read_only(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  UniqueFd copy(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!copy.valid()) return errno_status(Code::kInternal, "cannot reopen shared memory read-only", errno);
  return copy;
}

Result<std::pair<std::uint32_t, std::byte*>> ArenaTable::add(Arena arena, bool peers_may_write) {
  std::byte* const data = arena.data();
  const std::lock_guard lock(mutex_);
  if (entries_.size() >= kMaxArenas) {
    return {Code::kResourceExhausted, "all " + std::to_string(kMaxArenas) + " arenas are in use"};
  }
  // Indices go round, so that one is not used again while peers may still remember it.
  do {
    last_index_ = last_index_ % kMaxArenas + 1;
  } while (entries_.contains(last_index_));
  entries_.emplace(last_index_, Entry{std::move(arena), peers_may_write});
  return std::pair(last_index_, data);
}

Result<ArenaTable::Grant> ArenaTable::grant(std::uint32_t index) const {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(index);
  if (it == entries_.end()) return {Code::kNotFound, "there is no arena " + std::to_string(index)};
  const Arena& arena = it->second.arena;
  if (!it->second.peers_may_write) {
    KVF_ASSIGN_OR_RETURN(UniqueFd fd, reopen_read_only(arena.fd()));
    return Grant{std::move(fd), arena.length()};
  }
  UniqueFd fd(::fcntl(arena.fd(), F_DUPFD_CLOEXEC, 0));
  if (!fd.valid()) return errno_status(Code::kResourceExhausted, "cannot duplicate a descriptor", errno);
  return Grant{std::move(fd), arena.length()};
}

void ArenaTable::remove(std::uint32_t index) {
  decltype(entries_)::node_type gone;
  {
    const std::lock_guard lock(mutex_);
    gone = entries_.extract(index);
  }
  if (!gone.empty()) gone.mapped().arena.discard();  // and unmapped as it leaves
}

}  // namespace kvferry
