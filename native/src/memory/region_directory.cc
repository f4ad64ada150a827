#include "memory/region_directory.h"

#include <fcntl.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "base/limits.h"
#include "base/random.h"
#include "memory/address_range.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace kvferry {
namespace {

using Word = std::atomic<std::uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 8, "shared words must not need a lock");

constexpr std::uint64_t kDirectoryMagic = 0x3152494446564BULL;  // "KVFDIR1" in memory order
constexpr std::size_t kEntryWords = 8;

struct Entry {
  Word sequence;  // odd while the owner changes the entry
  Word id_generation;
  Word base;
  Word length;
  Word access_kind_arena;  // access | kind << 8 | arena index << 32
  Word arena_offset;
  Word unused[2];
};
static_assert(sizeof(Entry) == 8 * kEntryWords);

struct Layout {
  Word magic;
  Word owner[2];
  Word capacity;
  Word probe_address;
  Word probe_value;
  Word unused[2];
  Entry entries[kMaxRegions];  // region id - 1
};
constexpr std::uint64_t kDirectoryBytes = sizeof(Layout);

Layout& layout_of(const Arena& memory) { return *reinterpret_cast<Layout*>(memory.data()); }

std::array<std::uint64_t, 2> words_of(const NodeId& id) {
  return std::bit_cast<std::array<std::uint64_t, 2>>(id.bytes);
}

// The data words are written with release and read with acquire: a reader that sees one of a change also sees the odd
// sequence that began it, so it never takes a mixture for an entry. No fence is needed.
void begin_change(Entry& entry) { entry.sequence.fetch_add(1, std::memory_order_acq_rel); }
void end_change(Entry& entry) { entry.sequence.fetch_add(1, std::memory_order_seq_cst); }

struct Snapshot {
  std::uint64_t id_generation = 0, base = 0, length = 0, access_kind_arena = 0, arena_offset = 0;
};

// False if the owner was changing it.
bool try_snapshot(const Entry& entry, Snapshot* out) {
  const std::uint64_t before = entry.sequence.load(std::memory_order_seq_cst);
  if ((before & 1) != 0) return false;
  // Acquire keeps the second look at the sequence after these.
  out->id_generation = entry.id_generation.load(std::memory_order_acquire);
  out->base = entry.base.load(std::memory_order_acquire);
  out->length = entry.length.load(std::memory_order_acquire);
  out->access_kind_arena = entry.access_kind_arena.load(std::memory_order_acquire);
  out->arena_offset = entry.arena_offset.load(std::memory_order_acquire);
  return entry.sequence.load(std::memory_order_relaxed) == before;
}

// The owner changes an entry in well under a microsecond; one that stopped in the middle is not waited for.
bool snapshot(const Entry& entry, Snapshot* out) {
  constexpr int kAttempts = 1000;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (try_snapshot(entry, out)) return true;
    if (attempt % 16 == 15) std::this_thread::yield();
  }
  return false;
}

Result<DirectoryEntry> validated(std::uint32_t id, const Snapshot& seen) {
  DirectoryEntry entry;
  entry.key = {static_cast<std::uint32_t>(seen.id_generation), static_cast<std::uint32_t>(seen.id_generation >> 32)};
  entry.base = seen.base;
  entry.length = seen.length;
  entry.access = static_cast<std::uint8_t>(seen.access_kind_arena);
  entry.kind = static_cast<MemoryKind>(seen.access_kind_arena >> 8 & 0xff);
  entry.arena_index = static_cast<std::uint32_t>(seen.access_kind_arena >> 32);
  entry.arena_offset = seen.arena_offset;
  const bool sane = entry.key.id == id && entry.key.generation != 0 && entry.base != 0 && entry.length != 0 &&
                    entry.length <= UINT64_MAX - entry.base && entry.length <= UINT64_MAX - entry.arena_offset &&
                    (entry.access & ~(kRemoteRead | kRemoteWrite)) == 0 && entry.kind == MemoryKind::kHost &&
                    (seen.access_kind_arena & 0xffff0000U) == 0 && entry.arena_index <= kMaxArenas &&
                    (entry.arena_index != 0 || entry.arena_offset == 0);
  if (!sane)
    return {Code::kProtocolError, "the peer's directory has a senseless entry for region " + std::to_string(id)};
  return entry;
}

std::string region_text(RegionKey key) {
  return "region " + std::to_string(key.id) + " generation " + std::to_string(key.generation);
}

}  // namespace

Status check_range(const DirectoryEntry& entry, std::uint64_t offset, std::uint64_t length) {
  if (range_fits(offset, length, entry.length)) return {};
  return {Code::kOutOfRange, region_text(entry.key) + " has " + std::to_string(entry.length) + " bytes; offset " +
                                 std::to_string(offset) + " length " + std::to_string(length) + " leaves it"};
}

Result<RegionDirectoryWriter> RegionDirectoryWriter::create(const NodeId& owner) {
  KVF_ASSIGN_OR_RETURN(Arena memory, Arena::create(kDirectoryBytes, "region-directory"));
  auto probe = std::make_unique<std::uint64_t>(random_u64());
  Layout& layout = layout_of(memory);
  const auto id = words_of(owner);
  layout.owner[0].store(id[0], std::memory_order_relaxed);
  layout.owner[1].store(id[1], std::memory_order_relaxed);
  layout.capacity.store(kMaxRegions, std::memory_order_relaxed);
  layout.probe_address.store(reinterpret_cast<std::uint64_t>(probe.get()), std::memory_order_relaxed);
  layout.probe_value.store(*probe, std::memory_order_relaxed);
  layout.magic.store(kDirectoryMagic, std::memory_order_release);
  // Our own mapping stays writable; nobody can make another one that is. Kernels before 5.1 lack this seal: then a peer
  // of our own user could spoil its view and that of others, who check all they read.
  [[maybe_unused]] const int ignored = ::fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
  return RegionDirectoryWriter(std::move(memory), std::move(probe));
}

void RegionDirectoryWriter::publish(const DirectoryEntry& entry) {
  Entry& slot = layout_of(memory_).entries[entry.key.id - 1];
  const std::uint64_t access_kind_arena =
      entry.access | std::uint64_t{static_cast<std::uint8_t>(entry.kind)} << 8 | std::uint64_t{entry.arena_index} << 32;
  begin_change(slot);
  slot.id_generation.store(entry.key.id | std::uint64_t{entry.key.generation} << 32, std::memory_order_release);
  slot.base.store(entry.base, std::memory_order_release);
  slot.length.store(entry.length, std::memory_order_release);
  slot.access_kind_arena.store(access_kind_arena, std::memory_order_release);
  slot.arena_offset.store(entry.arena_offset, std::memory_order_release);
  end_change(slot);
}

void RegionDirectoryWriter::withdraw(std::uint32_t id) {
  Entry& slot = layout_of(memory_).entries[id - 1];
  begin_change(slot);
  slot.id_generation.store(0, std::memory_order_release);
  slot.base.store(0, std::memory_order_release);
  slot.length.store(0, std::memory_order_release);
  end_change(slot);
}

Result<RegionDirectoryReader> RegionDirectoryReader::open(UniqueFd fd, const NodeId& expected_owner) {
  auto mapped = Arena::map(std::move(fd), kDirectoryBytes, false);
  if (!mapped.ok()) return mapped.status().with_context("region directory");
  const Layout& layout = layout_of(*mapped);
  if (layout.magic.load(std::memory_order_acquire) != kDirectoryMagic ||
      layout.capacity.load(std::memory_order_relaxed) != kMaxRegions) {
    return {Code::kProtocolError, "region directory: not of version 1"};
  }
  const auto id = words_of(expected_owner);
  if (layout.owner[0].load(std::memory_order_relaxed) != id[0] ||
      layout.owner[1].load(std::memory_order_relaxed) != id[1]) {
    return {Code::kProtocolError, "region directory: belongs to another node than " + expected_owner.to_string()};
  }
  return RegionDirectoryReader(std::move(mapped).value());
}

DirectoryProbe RegionDirectoryReader::probe() const {
  const Layout& layout = layout_of(memory_);
  return {layout.probe_address.load(std::memory_order_relaxed), layout.probe_value.load(std::memory_order_relaxed)};
}

Result<DirectoryEntry> RegionDirectoryReader::read(std::uint32_t id) const {
  if (id == 0 || id > kMaxRegions) return {Code::kNotFound, "the peer has no region " + std::to_string(id)};
  Snapshot seen;
  if (!snapshot(layout_of(memory_).entries[id - 1], &seen)) {
    return {Code::kUnavailable, "the peer keeps changing its directory entry for region " + std::to_string(id)};
  }
  if (seen.id_generation == 0) return {Code::kNotFound, "the peer has no region " + std::to_string(id)};
  return validated(id, seen);
}

Result<DirectoryEntry> RegionDirectoryReader::resolve(RegionKey key, std::uint64_t offset, std::uint64_t length,
                                                      Op op) const {
  KVF_ASSIGN_OR_RETURN(const DirectoryEntry entry, read(key.id));
  if (entry.key != key) {
    return {Code::kStale, region_text(key) + " was replaced by generation " + std::to_string(entry.key.generation)};
  }
  const std::uint8_t needed = op == Op::kRead ? kRemoteRead : kRemoteWrite;
  if ((entry.access & needed) == 0) {
    return {Code::kPermissionDenied, region_text(key) + (op == Op::kRead ? " may not be read" : " may not be written")};
  }
  KVF_RETURN_IF_ERROR(check_range(entry, offset, length));
  return entry;
}

Status RegionDirectoryReader::still_current(RegionKey key) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the loads of the copy come before those of read()
  const auto entry = read(key.id);
  if (entry.ok() && entry->key == key) return {};
  return {Code::kStale, region_text(key) + " was withdrawn during the copy"};
}

}  // namespace kvferry
