#include "store/index_layout.h"

#include <time.h>

#include <algorithm>
#include <string>

namespace kvferry::store {
namespace {

// Where max_objects is not set. Blocks of KV cache have 16 KiB and more, but values may be smaller, and when the slots
// are used up they displace each other with most of the memory free. The index takes 64 bytes of slot, up to 16 of
// bucket and 4 of lists for each object: 4 % of the memory.
constexpr std::uint64_t kDramBytesPerObject = 2u << 10;
constexpr std::uint64_t kSsdBytesPerObject = 64u << 10;
constexpr std::uint64_t kFewestObjects = 16u << 10;
constexpr std::uint64_t kMostObjects = 1ull << 31;
constexpr std::uint64_t kSlotsPerList = 32;  // memory is seldom so fragmented that a value needs a list of places

std::uint64_t objects_of(const NodeOptions& options) {
  if (options.max_objects != 0) return options.max_objects;
  std::uint64_t objects = options.dram_bytes / kDramBytesPerObject;
  if (!options.ssd_directory.empty()) objects += options.ssd_bytes / kSsdBytesPerObject;
  return std::max(objects, kFewestObjects);
}

}  // namespace

std::string IndexShape::advice(const NodeOptions& options) {
  const std::string objects = std::to_string(objects_of(options)) + " objects";
  if (options.max_objects != 0) return "the index of " + objects + " (--max-objects, store.max_objects)";
  return "the index of " + objects + ", one for each 64 KiB of --ssd and 2 KiB of --dram (if values are larger than " +
         "that, say how many there are at most with --max-objects, store.max_objects; else make --ssd smaller)";
}

Status IndexShape::check(const NodeOptions& options) {
  if (objects_of(options) <= kMostObjects) return {};
  return {Code::kInvalidArgument,
          advice(options) + ": it describes " + std::to_string(kMostObjects) + " objects at most"};
}

IndexShape IndexShape::of(const NodeOptions& options) {
  IndexShape shape;
  shape.slots = std::min(objects_of(options), kMostObjects);
  shape.buckets = std::bit_ceil(shape.slots);
  shape.scattered = shape.slots / kSlotsPerList + 16;
  return shape;
}

bool IndexShape::sane() const {
  return slots > 0 && slots <= kMostObjects && std::has_single_bit(buckets) && buckets <= 2 * kMostObjects &&
         scattered <= kMostObjects;
}

IndexView IndexView::of(const std::byte* memory, const IndexShape& shape) {
  // One set of pointers serves both sides. Where the memory is mapped to be read only, it is never written to.
  auto* const base = const_cast<std::byte*>(memory);
  IndexView view;
  view.shape = shape;
  view.header = reinterpret_cast<IndexHeader*>(base);
  view.buckets = reinterpret_cast<IndexBucket*>(base + shape.buckets_at());
  view.slots = reinterpret_cast<IndexSlot*>(base + shape.slots_at());
  view.scattered = reinterpret_cast<IndexPlaces*>(base + shape.scattered_at());
  return view;
}

std::uint64_t monotonic_ms() {
  // The coarse one is some milliseconds behind, and read without a system call or a look at the hardware everywhere.
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 + static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
}

}  // namespace kvferry::store
