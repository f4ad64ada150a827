// A flat hash table of directory entries: dense chunks of entries and an open-addressed table of 4-byte references, so
// that growing moves no entry. About 55 bytes per entry. Used under its owner's lock.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kvferry/object_id.h"
#include "kvferry/store.h"

namespace kvferry::store {

struct HolderEntry {
  static constexpr std::size_t kHolders = 3;
  static constexpr std::uint64_t kMostBytes = (1ull << 48) - 1;
  ObjectId id;
  ContentDigest digest;
  std::uint64_t bytes : 48 = 0;
  std::uint64_t told : 16 = 0;  // which announcement was the last one
  std::array<std::uint16_t, kHolders> holders{};
  std::uint8_t count = 0;  // of holders here; more are beside the table
  std::uint8_t replicas = 1;
};
static_assert(sizeof(HolderEntry) == 48);

class DirectoryTable {
 public:
  HolderEntry* find(const ObjectId& id);
  const HolderEntry* find(const ObjectId& id) const { return const_cast<DirectoryTable*>(this)->find(id); }
  HolderEntry& add(const ObjectId& id);  // it is not there
  void erase(HolderEntry* entry);        // moves the last entry to its place
  std::size_t size() const { return size_; }
  HolderEntry& at(std::size_t index) { return chunks_[index / kChunk][index % kChunk]; }
  const HolderEntry& at(std::size_t index) const { return chunks_[index / kChunk][index % kChunk]; }
  std::uint64_t memory_bytes() const;

 private:
  static constexpr std::size_t kChunk = 64;
  static constexpr std::uint32_t kFree = UINT32_MAX;

  std::size_t home(const ObjectId& id) const { return id.lo & (slots_.size() - 1); }
  std::size_t slot_of(const ObjectId& id) const;  // where it is, or the free one where it would be
  void grow();
  void close_gap(std::size_t slot);

  std::vector<std::unique_ptr<HolderEntry[]>> chunks_;
  std::vector<std::uint32_t> slots_;  // a power of two, at most 7/8 in use: index of an entry, or kFree
  std::size_t size_ = 0;
};

}  // namespace kvferry::store
