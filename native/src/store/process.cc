#include "store/process.h"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace kvferry::store {

std::optional<std::uint64_t> process_start(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const std::size_t name_end = line.rfind(')');  // the name may have anything in it
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  std::string state, skipped;
  fields >> state;
  constexpr int kBetweenStateAndStart = 18;
  for (int i = 0; i < kBetweenStateAndStart; ++i) fields >> skipped;
  std::uint64_t start = 0;
  if (!(fields >> start) || state == "Z" || state == "X") return std::nullopt;
  return start;
}

ProcessRef ProcessRef::self() { return {::getpid(), process_start(::getpid()).value_or(0)}; }

}  // namespace kvferry::store
