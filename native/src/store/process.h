// Whether a process of this host still runs, or was stopped. A process id is used again; with the time at which it
// began it is not.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace kvferry::store {

// In clock ticks since boot; nullopt: there is no such process (a zombie is none), or /proc does not tell.
std::optional<std::uint64_t> process_start(pid_t pid);

struct ProcessRef {
  pid_t pid = 0;
  std::uint64_t start = 0;
  static ProcessRef self();
  static ProcessRef of(pid_t pid) { return {pid, process_start(pid).value_or(0)}; }
  bool is_running() const { return process_start(pid) == start; }
  // By SIGSTOP or a terminal (state T of /proc/PID/stat). A debugger's short stops are none.
  bool is_stopped() const;
  std::string advice() const;  // for who meets it stopped
  bool operator==(const ProcessRef&) const = default;
};

}  // namespace kvferry::store
