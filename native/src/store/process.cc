#include "store/process.h"

#include <unistd.h>

#include <fstream>
#include <sstream>

namespace kvferry::store {
namespace {

struct ProcessState {
  char state = 0;
  std::uint64_t start = 0;
};

std::optional<ProcessState> look_at(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const std::size_t name_end = line.rfind(')');  // the name may have anything in it
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  ProcessState found;
  std::string skipped;
  fields >> found.state;
  constexpr int kBetweenStateAndStart = 18;
  for (int i = 0; i < kBetweenStateAndStart; ++i) fields >> skipped;
  if (!(fields >> found.start) || found.state == 'Z' || found.state == 'X') return std::nullopt;
  return found;
}

}  // namespace

std::optional<std::uint64_t> process_start(pid_t pid) {
  const auto found = look_at(pid);
  return found ? std::optional(found->start) : std::nullopt;
}

bool ProcessRef::is_stopped() const {
  if (pid == 0) return false;
  const auto found = look_at(pid);
  return found && found->start == start && found->state == 'T';
}

std::string ProcessRef::advice() const {
  const std::string id = std::to_string(pid);
  return "its process " + id + " on this host is stopped (state T); `kill -CONT " + id + "` lets it go on";
}

ProcessRef ProcessRef::self() { return of(::getpid()); }

}  // namespace kvferry::store
