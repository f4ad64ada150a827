// Which of the program's memory other nodes may reach, and what must be registered for one call only. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "kvferry/engine.h"
#include "kvferry/status.h"

namespace kvferry::store {

struct LocalRun {  // memory of this process as plans and peers name it
  RegionKey region;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

class ProgramMemory {
  struct Range {
    std::uint64_t length = 0;
    RegionKey region;
  };
  using Ranges = std::map<std::uintptr_t, Range>;  // by address

 public:
  explicit ProgramMemory(Engine& engine) : engine_(engine) {}

  Status add(void* data, std::uint64_t length);
  Status remove(void* data);

  // Finds or registers runs of memory for one call; what it registered goes when it dies. `reader`: who was asked to
  // read it; if it stands still in the middle of that, the connection is cut, so that the call need not wait for it.
  class Use {
   public:
    explicit Use(ProgramMemory& memory, std::shared_ptr<Peer> reader = nullptr)
        : memory_(memory), reader_(std::move(reader)) {}
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    // Registers together what lies side by side; of() then finds it. Runs that nobody may reach from outside (`access`
    // 0) are joined also if they only share a page, or the pages touch.
    Status cover(std::span<const std::span<const std::byte>> runs, std::uint8_t access);
    Result<LocalRun> of(const std::byte* data, std::uint64_t length, std::uint8_t access);

   private:
    Result<LocalRun> add(std::uintptr_t start, std::uint64_t length, std::uint8_t access);
    ProgramMemory& memory_;
    const std::shared_ptr<Peer> reader_;
    std::vector<RegionKey> registered_;
    Ranges found_;  // of these
  };

 private:
  static bool find(const Ranges& ranges, std::uintptr_t address, std::uint64_t length, LocalRun* run);

  Engine& engine_;
  mutable std::mutex mutex_;
  Ranges ranges_;  // guarded by mutex_
};

}  // namespace kvferry::store
