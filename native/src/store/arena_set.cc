#include "store/arena_set.h"

#include <algorithm>
#include <numeric>

#include "base/log.h"

namespace kvferry::store {

ArenaSet::ArenaSet(std::span<const std::uint64_t> lengths) {
  for (const std::uint64_t length : lengths) arenas_.emplace_back(length);
}

std::vector<std::uint32_t> ArenaSet::roomiest_first() const {
  std::vector<std::uint32_t> order(arenas_.size());
  std::iota(order.begin(), order.end(), 0U);
  if (order.size() == 1) return order;
  std::stable_sort(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) {
    return arenas_[a].largest_free() > arenas_[b].largest_free();
  });
  return order;
}

std::optional<std::vector<Place>> ArenaSet::allocate(std::uint64_t bytes) {
  for (const std::uint32_t arena : roomiest_first()) {
    const auto extents = arenas_[arena].allocate(bytes);
    if (!extents) continue;
    std::vector<Place> places;
    places.reserve(extents->size());
    std::uint64_t left = bytes;
    for (const Extent& extent : *extents) {
      places.push_back({arena, extent.offset, std::min(left, extent.length)});
      left -= places.back().length;
    }
    return places;
  }
  return arenas_.size() > 1 ? allocate_over_several(bytes) : std::nullopt;
}

std::optional<std::vector<Place>> ArenaSet::allocate_over_several(std::uint64_t bytes) {
  std::vector<Place> places;
  std::uint64_t left = bytes;
  while (left > 0) {
    const std::uint32_t arena = roomiest_first().front();
    // Whole pages, so that the value's other parts are aligned, too, and free() knows what was taken.
    const std::uint64_t room = arenas_[arena].largest_free() / ExtentAllocator::kPage * ExtentAllocator::kPage;
    const std::uint64_t part = std::min(left, room);
    // The last part is rounded as the value is, although it may be shorter than a page.
    const auto extents =
        part == 0 || places.size() == kMaxExtents
            ? std::nullopt
            : arenas_[arena].allocate(ExtentAllocator::rounded(std::max(part, ExtentAllocator::kPage)));
    if (!extents || extents->size() != 1) {
      if (extents) {
        for (const Extent& extent : *extents) (void)arenas_[arena].free(extent).ok();
      }
      free(places, ExtentAllocator::kPage);
      return std::nullopt;
    }
    places.push_back({arena, (*extents)[0].offset, part});
    left -= part;
  }
  return places;
}

void ArenaSet::free(std::span<const Place> places, std::uint64_t bytes) {
  const bool in_pages = bytes >= ExtentAllocator::kPage;
  for (const Place& place : places) {
    const std::uint64_t length = in_pages ? std::max(place.length, ExtentAllocator::kPage) : place.length;
    const Status freed = arenas_[place.arena].free({place.offset, ExtentAllocator::rounded(length)});
    if (!freed.ok()) log_event(LogLevel::kError, "store_free_failed", {{"status", freed}});
  }
}

std::uint64_t ArenaSet::capacity() const {
  std::uint64_t sum = 0;
  for (const ExtentAllocator& arena : arenas_) sum += arena.capacity();
  return sum;
}

std::uint64_t ArenaSet::free_bytes() const {
  std::uint64_t sum = 0;
  for (const ExtentAllocator& arena : arenas_) sum += arena.free_bytes();
  return sum;
}

std::uint64_t ArenaSet::largest_free() const {
  std::uint64_t most = 0;
  for (const ExtentAllocator& arena : arenas_) most = std::max(most, arena.largest_free());
  return most;
}

std::uint64_t ArenaSet::memory_bytes() const {
  std::uint64_t sum = 0;
  for (const ExtentAllocator& arena : arenas_) sum += arena.memory_bytes();
  return sum;
}

Status ArenaSet::check() const {
  for (const ExtentAllocator& arena : arenas_) KVF_RETURN_IF_ERROR(arena.check());
  return {};
}

}  // namespace kvferry::store
