#include "store/client/memory.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvferry::store {
namespace {

constexpr milliseconds kUnregisterPatience{5000};
constexpr milliseconds kReaderPatience{100};  // until it is cut off
constexpr std::uintptr_t kPage = 4096;        // or a part of one

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

bool ProgramMemory::find(const Ranges& ranges, std::uintptr_t address, std::uint64_t length, LocalRun* run) {
  auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) return false;
  const auto& [start, range] = *--after;
  const std::uint64_t offset = address - start;
  if (offset > range.length || length > range.length - offset) return false;
  *run = {range.region, offset, length};
  return true;
}

ProgramMemory::Use::~Use() {
  for (const RegionKey& key : registered_) {
    // Nothing uses it any more: whoever could has answered, or is gone, or did not answer in time.
    const milliseconds patience = reader_ ? kReaderPatience : kUnregisterPatience;
    if (memory_.engine_.unregister(key, patience).code() != Code::kDeadlineExceeded || !reader_) continue;
    reader_->close();
    (void)memory_.engine_.unregister(key, kUnregisterPatience);
  }
}

Status ProgramMemory::Use::cover(std::span<const std::span<const std::byte>> runs, std::uint8_t access) {
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> open;  // first byte, and the one behind the last
  {
    const std::lock_guard lock(memory_.mutex_);
    LocalRun known;
    for (const auto& run : runs) {
      const std::uintptr_t start = address_of(run.data());
      if (run.empty() || find(memory_.ranges_, start, run.size(), &known)) continue;
      open.emplace_back(start, start + run.size());
    }
  }
  std::sort(open.begin(), open.end());
  for (std::size_t i = 0; i < open.size();) {
    auto [start, end] = open[i++];
    // A page that is mapped is mapped as a whole.
    const auto reach = [&] { return access == 0 ? (end + 2 * kPage - 1) / kPage * kPage : end + 1; };
    while (i < open.size() && open[i].first < reach()) end = std::max(end, open[i++].second);
    KVF_RETURN_IF_ERROR(add(start, end - start, access).status());
  }
  return {};
}

Result<LocalRun> ProgramMemory::Use::of(const std::byte* data, std::uint64_t length, std::uint8_t access) {
  LocalRun run;
  if (find(found_, address_of(data), length, &run)) return run;
  {
    const std::lock_guard lock(memory_.mutex_);
    if (find(memory_.ranges_, address_of(data), length, &run)) return run;
  }
  return add(address_of(data), length, access);
}

Result<LocalRun> ProgramMemory::Use::add(std::uintptr_t start, std::uint64_t length, std::uint8_t access) {
  void* data = reinterpret_cast<void*>(start);  // NOLINT: what access allows is what will be done
  auto info = memory_.engine_.register_memory(data, length, "kvferry.store.call", access, MemoryKind::kHost);
  if (!info.ok()) return info.status();
  registered_.push_back(info->key);
  found_[start] = {length, info->key};
  return LocalRun{info->key, 0, length};
}

}  // namespace kvferry::store
