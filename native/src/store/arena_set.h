// The memory of a node: its arenas, which of their bytes are free. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvferry/status.h"
#include "store/extent_allocator.h"
#include "store/local_store.h"

namespace kvferry::store {

class ArenaSet {
 public:
  explicit ArenaSet(std::span<const std::uint64_t> lengths);

  // Room for a value, in the arena that can hold the longest one, else in any one, else over several; in kMaxExtents
  // places at most. No places for no bytes; nothing if there is no room, or only in too many pieces.
  std::optional<std::vector<Place>> allocate(std::uint64_t bytes);
  // Gives back what allocate() gave for a value of so many bytes.
  void free(std::span<const Place> places, std::uint64_t bytes);

  static std::uint64_t rounded(std::uint64_t bytes) { return ExtentAllocator::rounded(bytes); }
  std::uint64_t capacity() const;
  std::uint64_t free_bytes() const;
  std::uint64_t largest_free() const;
  std::uint64_t memory_bytes() const;
  Status check() const;

 private:
  std::vector<std::uint32_t> roomiest_first() const;
  std::optional<std::vector<Place>> allocate_over_several(std::uint64_t bytes);
  std::vector<ExtentAllocator> arenas_;
};

}  // namespace kvferry::store
