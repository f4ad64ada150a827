#include "store/quick_writer.h"

#include <algorithm>
#include <cstring>

#include "base/deadline.h"
#include "store/extent_allocator.h"

namespace kvferry::store {
namespace {

// The node hears of puts at the latest when it looks after its clients, some times a second. Before that it is told
// when so many puts wait, or half of the offers are used: then it has time to make new ones before the last is.
constexpr std::uint32_t kManyWaiting = kQuickWaiting / 2;

std::uint64_t offered(std::uint64_t bytes) { return quick_state(ExtentAllocator::rounded(bytes), QuickUse::kOffered); }

}  // namespace

bool QuickWriter::waiting() const {
  if (mine_ == nullptr) return false;
  const QuickDoor door = QuickDoor::of(memory_.door->load(std::memory_order_acquire));
  return door.locked || door.waiting > 0;
}

bool QuickWriter::may_put() const {
  return mine_ != nullptr && QuickDoor::of(memory_.door->load(std::memory_order_relaxed)).open;
}

std::optional<std::uint32_t> QuickWriter::take(std::uint64_t bytes) const {
  const std::uint64_t free = offered(bytes);
  const std::uint64_t taken = quick_state(ExtentAllocator::rounded(bytes), QuickUse::kTaken);
  for (std::uint32_t entry = 0; entry < kQuickEntries; ++entry) {
    SharedWord& state = mine_->state[entry];
    std::uint64_t now = state.load(std::memory_order_relaxed);
    if (now != free || !state.compare_exchange_strong(now, taken, std::memory_order_acq_rel)) continue;
    // Another thread of this process may have put by this entry before the node took that in and offered it again. The
    // order is there through the node, but that maps this memory elsewhere, and ThreadSanitizer goes by addresses.
    (void)memory_.door->load(std::memory_order_acquire);
    return entry;
  }
  return std::nullopt;
}

void QuickWriter::give_back(std::uint32_t entry, std::uint64_t bytes) const {
  mine_->state[entry].store(offered(bytes), std::memory_order_release);
}

Place QuickWriter::place(std::uint32_t entry, std::uint64_t bytes) const {
  return place_of(mine_->entries[entry].place.load(std::memory_order_relaxed), bytes);
}

void QuickWriter::describe(std::uint32_t entry, const NewObject& object, const ContentDigest& digest) const {
  QuickEntry& to = mine_->entries[entry];
  to.id[0].store(object.id.hi, std::memory_order_relaxed);
  to.id[1].store(object.id.lo, std::memory_order_relaxed);
  to.digest[0] = digest.hi;
  to.digest[1] = digest.lo;
  to.bytes = object.bytes;
  to.expires_ms = kNeverExpires;
  if (object.expires_in) {
    const auto in_ms = std::clamp(*object.expires_in, milliseconds(0), kLongestWait);
    to.expires_ms = monotonic_ms() + static_cast<std::uint64_t>(in_ms.count());
  }
  to.parent[0] = object.parent.hi;
  to.parent[1] = object.parent.lo;
  to.depth = object.depth;
  to.key_bytes = static_cast<std::uint16_t>(object.key.size());
  to.tenant_bytes = static_cast<std::uint16_t>(object.tenant.size());
  std::memcpy(to.text, object.key.data(), object.key.size());
  std::memcpy(to.text + object.key.size(), object.tenant.data(), object.tenant.size());
}

// What it reads may be of another put by now: then the door has another version, and hang() fails.
bool QuickWriter::is_in_list(const QuickDoor& door, const ObjectId& id) const {
  std::uint32_t ref = door.last;
  for (std::uint32_t i = 0; i < door.waiting && ref > 0 && ref <= memory_.pages.size() * kQuickEntries; ++i) {
    const QuickEntry& entry = memory_.entry(ref);
    if (entry.id[1].load(std::memory_order_relaxed) == id.lo && entry.id[0].load(std::memory_order_relaxed) == id.hi) {
      return true;
    }
    ref = static_cast<std::uint32_t>(entry.link.load(std::memory_order_relaxed));
  }
  return false;
}

bool QuickWriter::hang(std::uint32_t entry, const QuickDoor& door, std::uint64_t word) const {
  mine_->entries[entry].link.store(door.last, std::memory_order_relaxed);
  const QuickDoor next{door.version + 1, door.waiting + 1, quick_ref(page_, entry), false, true};
  // Release: what was written and described before is there for whoever takes the list.
  return memory_.door->compare_exchange_strong(word, next.word(), std::memory_order_acq_rel);
}

bool QuickWriter::should_ring(std::uint64_t bytes) const {
  const QuickDoor door = QuickDoor::of(memory_.door->load(std::memory_order_relaxed));
  if (door.waiting == kManyWaiting) return true;
  const std::uint64_t free = offered(bytes);
  const auto left = std::ranges::count_if(
      mine_->state, [free](const SharedWord& state) { return state.load(std::memory_order_relaxed) == free; });
  return left <= 1 || left == quick_offers_for(ExtentAllocator::rounded(bytes)) / 2;
}

}  // namespace kvferry::store
