#include "store/policy/history.h"

#include <algorithm>
#include <bit>

namespace kvferry::store {
namespace {

// Never 0, which means no id.
std::uint16_t kept(std::uint32_t tag, std::uint8_t number) {
  const std::uint32_t low = tag & 0xFFF;
  return static_cast<std::uint16_t>((low == 0 ? 0xFFF : low) << 4 | number);
}

}  // namespace

void History::make_room_for(std::uint64_t objects) {
  // A bucket for every kWays ids, rounded down: a table that grew at a full one would be half empty.
  const std::uint64_t wanted = std::max<std::uint64_t>(objects * ids_per_object_ / kWays, kFewest);
  if (wanted < std::uint64_t{buckets_} * 2 && buckets_ > 0) return;
  const auto buckets = static_cast<std::uint32_t>(std::bit_floor(std::min<std::uint64_t>(wanted, 1u << 20)));
  if (buckets <= buckets_) return;
  // Each old bucket becomes several: which one an id belongs to was in the bits not kept, so they all get it.
  std::vector<std::uint16_t> ids(std::size_t{buckets} * kWays, 0);
  const std::uint32_t copies = buckets_ == 0 ? 0 : buckets / buckets_;
  for (std::uint32_t old = 0; old < buckets_; ++old) {
    for (std::uint32_t copy = 0; copy < copies; ++copy) {
      std::copy_n(ids_.begin() + std::ptrdiff_t{old} * kWays, kWays,
                  ids.begin() + (std::ptrdiff_t{old} * copies + copy) * kWays);
    }
  }
  ids_.swap(ids);
  buckets_ = buckets;
}

std::uint16_t* History::bucket(std::uint32_t tag) {
  return ids_.data() + ((std::uint64_t{tag} * buckets_) >> 32) * kWays;
}

void History::put(std::uint32_t tag, std::uint8_t number) {
  if (buckets_ == 0) return;
  std::uint16_t* ids = bucket(tag);
  std::copy_backward(ids, ids + kWays - 1, ids + kWays);
  ids[0] = kept(tag, number);
}

std::optional<std::uint8_t> History::take(std::uint32_t tag) {
  if (buckets_ == 0) return std::nullopt;
  std::uint16_t* ids = bucket(tag);
  const auto same = [wanted = kept(tag, 0) >> 4](std::uint16_t id) { return id >> 4 == wanted; };
  std::uint16_t* found = std::find_if(ids, ids + kWays, same);
  if (found == ids + kWays) return std::nullopt;
  const auto number = static_cast<std::uint8_t>(*found & 15);
  std::copy(found + 1, ids + kWays, found);
  ids[kWays - 1] = 0;
  return number;
}

}  // namespace kvferry::store
