// Whether a process of this host still runs. A process id is used again; with the time at which it began it is not.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace kvferry::store {

// In clock ticks since boot; nullopt: there is no such process (a zombie is none), or /proc does not tell.
std::optional<std::uint64_t> process_start(pid_t pid);

struct ProcessRef {
  pid_t pid = 0;
  std::uint64_t start = 0;
  static ProcessRef self();
  bool is_running() const { return process_start(pid) == start; }
  bool operator==(const ProcessRef&) const = default;
};

}  // namespace kvferry::store
