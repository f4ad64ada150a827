#include "store/client/memory.h"

#include <string>

namespace kvferry::store {
namespace {

constexpr milliseconds kUnregisterPatience{5000};

std::uintptr_t address_of(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

}  // namespace

Status ProgramMemory::add(void* data, std::uint64_t length) {
  auto info = engine_.register_memory(data, length, "kvferry.store.program", kRemoteRead, MemoryKind::kHost);
  if (!info.ok()) return info.status();
  const std::lock_guard lock(mutex_);
  if (!ranges_.emplace(address_of(data), Range{length, info->key}).second) {
    (void)engine_.unregister(info->key, kUnregisterPatience);
    return {Code::kInvalidArgument, "memory at this address is registered already"};
  }
  return {};
}

Status ProgramMemory::remove(void* data) {
  RegionKey key;
  {
    const std::lock_guard lock(mutex_);
    const auto found = ranges_.find(address_of(data));
    if (found == ranges_.end()) return {Code::kNotFound, "no memory that begins at this address is registered"};
    key = found->second.region;
    ranges_.erase(found);
  }
  return engine_.unregister(key, kUnregisterPatience);
}

bool ProgramMemory::find(std::uintptr_t address, std::uint64_t length, LocalRun* run) const {
  const std::lock_guard lock(mutex_);
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return false;
  const auto& [start, range] = *--after;
  const std::uint64_t offset = address - start;
  if (offset > range.length || length > range.length - offset) return false;
  *run = {range.region, offset, length};
  return true;
}

ProgramMemory::Use::~Use() {
  // Nothing uses them any more: whoever could has answered, or is gone.
  for (const RegionKey& key : registered_) (void)memory_.engine_.unregister(key, kUnregisterPatience);
}

Result<LocalRun> ProgramMemory::Use::of(const std::byte* data, std::uint64_t length, std::uint8_t access) {
  LocalRun run;
  if (memory_.find(address_of(data), length, &run)) return run;
  void* start = const_cast<std::byte*>(data);  // NOLINT: what access allows is what will be done
  auto info = memory_.engine_.register_memory(start, length, "kvferry.store.call", access, MemoryKind::kHost);
  if (!info.ok()) return info.status();
  registered_.push_back(info->key);
  return LocalRun{info->key, 0, length};
}

}  // namespace kvferry::store
