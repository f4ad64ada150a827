// A process with one engine, for tests that need a peer of another process: "engine_child LENGTH arena|foreign
// TRANSPORTS SECURITY" (see secured()). Fills its region with pattern(7, place), prints "endpoint node_id" and lives
// until its standard input ends.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "engine_fixture.h"

int main(int argc, char** argv) {
  using namespace kvferry;           // NOLINT: a test program
  using namespace kvferry::testing;  // NOLINT
  if (argc != 5) return 2;
  const std::uint64_t length = std::strtoull(argv[1], nullptr, 10);
  std::vector<std::string> transports{argv[3]};
  if (std::strcmp(argv[3], "both") == 0) transports = {"shm", "tcp"};
  auto engine = Engine::create(secured(options_for(transports), argv[4]));
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", engine.status().to_string().c_str());
    return 1;
  }
  std::vector<std::byte> foreign;
  std::span<std::byte> memory;
  if (std::strcmp(argv[2], "arena") == 0) {
    auto region = (*engine)->allocate(length, "child", kRemoteRead | kRemoteWrite);
    if (!region.ok()) return 1;
    memory = {static_cast<std::byte*>(region->second), length};
  } else {
    foreign.resize(length);
    memory = foreign;
    if (!(*engine)
             ->register_memory(memory.data(), length, "child", kRemoteRead | kRemoteWrite, MemoryKind::kHost)
             .ok()) {
      return 1;
    }
  }
  fill(memory, 7);
  std::printf("%s %s\n", (*engine)->endpoint().to_string().c_str(), (*engine)->node_id().to_string().c_str());
  std::fflush(stdout);
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  (*engine)->close();
  return 0;
}
