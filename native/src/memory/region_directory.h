// The owner's region table as same-host peers see it: a small memfd that the owner writes and peers map read-only.
// Layout: docs/wire-format.md, "Region directory". One 64-byte entry per region id, each a seqlock.
//
// The owner never reads it back. The reader trusts nothing in it: every value is checked, every wait is bounded.
#pragma once

#include <cstdint>
#include <memory>

#include "kvferry/node_id.h"
#include "kvferry/status.h"
#include "kvferry/types.h"
#include "memory/arena.h"

namespace kvferry {

struct DirectoryEntry {
  RegionKey key;
  std::uint64_t base = 0;  // address in the owner's process
  std::uint64_t length = 0;
  std::uint8_t access = 0;
  MemoryKind kind = MemoryKind::kHost;
  std::uint32_t arena_index = 0;   // 0: ordinary process memory
  std::uint64_t arena_offset = 0;  // where the region begins in that arena
  bool operator==(const DirectoryEntry&) const = default;
};

// kOutOfRange, with the figures, unless [offset, offset + length) is inside the region.
Status check_range(const DirectoryEntry& entry, std::uint64_t offset, std::uint64_t length);

// Eight bytes in the owner's memory that hold a secret number: whoever can read them by process_vm_readv and finds the
// right value has the right process.
struct DirectoryProbe {
  std::uint64_t address = 0;
  std::uint64_t value = 0;
};

// Thread-compatible: RegionTable calls it under its lock.
class RegionDirectoryWriter {
 public:
  static Result<RegionDirectoryWriter> create(const NodeId& owner);

  int fd() const { return memory_.fd(); }
  std::uint64_t length() const { return memory_.length(); }
  void publish(const DirectoryEntry& entry);  // key.id in 1..kMaxRegions
  void withdraw(std::uint32_t id);            // sequentially consistent: see CopyLanes::quiesce

 private:
  explicit RegionDirectoryWriter(Arena memory, std::unique_ptr<std::uint64_t> probe)
      : memory_(std::move(memory)), probe_(std::move(probe)) {}
  Arena memory_;
  std::unique_ptr<std::uint64_t> probe_;
};

// Thread-safe after construction.
class RegionDirectoryReader {
 public:
  // kProtocolError if the descriptor is not a directory of this version, or not the owner's.
  static Result<RegionDirectoryReader> open(UniqueFd fd, const NodeId& expected_owner);

  DirectoryProbe probe() const;
  // The live entry of that id. kNotFound if none, kUnavailable if the owner keeps changing it, kProtocolError if
  // absurd.
  Result<DirectoryEntry> read(std::uint32_t id) const;
  // read() plus generation (kStale), access (kPermissionDenied) and range (kOutOfRange) checks.
  Result<DirectoryEntry> resolve(RegionKey key, std::uint64_t offset, std::uint64_t length, Op op) const;
  // To be asked after the copy: OK if the region is still the one that resolve() saw; else kStale.
  Status still_current(RegionKey key) const;

 private:
  explicit RegionDirectoryReader(Arena memory) : memory_(std::move(memory)) {}
  Arena memory_;
};

}  // namespace kvferry
