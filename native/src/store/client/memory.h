// Which of the program's memory other nodes may reach, and what must be registered for one call only. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
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
 public:
  explicit ProgramMemory(Engine& engine) : engine_(engine) {}

  Status add(void* data, std::uint64_t length);
  Status remove(void* data);

  // Finds or registers runs of memory for one call; what it registered goes when it dies.
  class Use {
   public:
    explicit Use(ProgramMemory& memory) : memory_(memory) {}
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    Result<LocalRun> of(const std::byte* data, std::uint64_t length, std::uint8_t access);

   private:
    ProgramMemory& memory_;
    std::vector<RegionKey> registered_;
  };

 private:
  struct Range {
    std::uint64_t length = 0;
    RegionKey region;
  };
  bool find(std::uintptr_t address, std::uint64_t length, LocalRun* run) const;

  Engine& engine_;
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Range> ranges_;  // by address; guarded by mutex_
};

}  // namespace kvferry::store
