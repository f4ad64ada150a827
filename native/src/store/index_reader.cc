#include "store/index_reader.h"

#include <algorithm>
#include <array>
#include <string>

namespace kvferry::store {
namespace {

// Steps along chains that one look-up takes at most, all tries together: a chain has one or two slots, so this many
// mean that the index is damaged, or that one bucket changed ten thousand times meanwhile.
constexpr int kMaxSteps = 1 << 16;

std::uint64_t expiry_of(std::uint64_t bytes_word, std::uint64_t next_word) {
  return bytes_word >> 48 << 32 | next_word >> 32;
}

}  // namespace

struct IndexReader::Walk {
  int steps_left = kMaxSteps;
  std::optional<Found> found;
};

Result<IndexReader> IndexReader::attach(std::span<const std::byte> memory, const NodeId& node) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  if (memory.size() < sizeof(IndexHeader) || address % 64 != 0) {
    return {Code::kProtocolError, "index: " + std::to_string(memory.size()) + " bytes, or not aligned"};
  }
  const IndexHeader& header = *reinterpret_cast<const IndexHeader*>(memory.data());
  if (header.magic.load(std::memory_order_acquire) != kIndexMagic) {
    return {Code::kProtocolError, "index: not of version 1"};
  }
  const auto words = std::bit_cast<std::array<std::uint64_t, 2>>(node.bytes);
  if (header.node[0].load(std::memory_order_relaxed) != words[0] ||
      header.node[1].load(std::memory_order_relaxed) != words[1]) {
    return {Code::kProtocolError, "index: belongs to another node than " + node.to_string()};
  }
  IndexShape shape;
  shape.slots = header.slots.load(std::memory_order_relaxed);
  shape.buckets = header.buckets.load(std::memory_order_relaxed);
  shape.scattered = header.scattered.load(std::memory_order_relaxed);
  if (!shape.sane() || shape.bytes() > memory.size()) {
    return {Code::kProtocolError, "index: " + std::to_string(shape.slots) + " slots do not fit its memory of " +
                                      std::to_string(memory.size()) + " bytes"};
  }
  return IndexReader(IndexView::of(memory.data(), shape));
}

IndexReader::Look IndexReader::look_at(std::uint32_t slot, ObjectId& id, Found& found) const {
  const IndexSlot& words = view_.slots[slot];
  const std::uint64_t state = words.state.load(std::memory_order_seq_cst);
  const SlotState parsed = SlotState::of(state);
  if (!parsed.held()) return Look::kEmpty;
  id = {words.id[0].load(std::memory_order_acquire), words.id[1].load(std::memory_order_acquire)};
  const std::uint64_t bytes = words.bytes.load(std::memory_order_acquire);
  const std::uint64_t next = words.next.load(std::memory_order_acquire);
  found.slot = slot;
  found.state = state;
  found.held.digest = {words.digest[0].load(std::memory_order_acquire),
                       words.digest[1].load(std::memory_order_acquire)};
  found.held.bytes = bytes & kMaxObjectBytes;
  found.held.tier = parsed.on_ssd() ? Tier::kSsd : Tier::kDram;
  found.held.replicas = parsed.replicas;
  found.expires_ms = expiry_of(bytes, next);
  found.place = words.place.load(std::memory_order_acquire);
  return words.state.load(std::memory_order_relaxed) == state ? Look::kSeen : Look::kChanged;
}

// True when the answer is certain: found, or absent from a chain that lost no slot meanwhile.
bool IndexReader::walk_chain(const ObjectId& id, Walk& walk) const {
  const IndexBucket& bucket = view_.bucket(id);
  const std::uint32_t changes = bucket.changes.load(std::memory_order_acquire);
  std::uint32_t at = bucket.head.load(std::memory_order_acquire);
  while (at != 0 && at <= view_.shape.slots && --walk.steps_left > 0) {
    const IndexSlot& slot = view_.slots[at - 1];
    if (slot.id[1].load(std::memory_order_acquire) == id.lo && slot.id[0].load(std::memory_order_acquire) == id.hi) {
      ObjectId seen;
      Found found;
      const Look look = look_at(at - 1, seen, found);
      if (look == Look::kChanged || (look == Look::kSeen && seen != id)) return false;
      if (look == Look::kSeen) walk.found = found;
      if (look == Look::kSeen) return true;
      // Removed, and about to leave the chain; a newer one under the same id would have come first.
    }
    at = static_cast<std::uint32_t>(slot.next.load(std::memory_order_acquire));
  }
  --walk.steps_left;
  return at == 0 && bucket.changes.load(std::memory_order_acquire) == changes;
}

std::optional<Found> IndexReader::find(const ObjectId& id, std::uint64_t now_ms) const {
  Walk walk;
  while (!walk_chain(id, walk)) {
    if (walk.steps_left <= 0) return std::nullopt;
  }
  if (walk.found && walk.found->expires_ms <= now_ms) return std::nullopt;
  return walk.found;
}

void IndexReader::fetch_slot(std::uint32_t at) const {
  if (at != 0 && at <= view_.shape.slots) __builtin_prefetch(&view_.slots[at - 1]);
}

void IndexReader::fetch_second(const ObjectId& id) const {
  const std::uint32_t head = view_.bucket(id).head.load(std::memory_order_relaxed);
  if (head == 0 || head > view_.shape.slots) return;
  const IndexSlot& slot = view_.slots[head - 1];
  if (slot.id[1].load(std::memory_order_relaxed) == id.lo) return;
  fetch_slot(static_cast<std::uint32_t>(slot.next.load(std::memory_order_relaxed)));
}

void IndexReader::exists(std::span<const ObjectId> ids, std::span<std::uint8_t> found) const {
  constexpr std::size_t kAhead = 16;
  const std::uint64_t now_ms = monotonic_ms();
  for (std::size_t first = 0; first < ids.size(); first += kAhead) {
    const auto group = ids.subspan(first, std::min(kAhead, ids.size() - first));
    for (const ObjectId& id : group) __builtin_prefetch(&view_.bucket(id));
    for (const ObjectId& id : group) fetch_slot(view_.bucket(id).head.load(std::memory_order_relaxed));
    for (const ObjectId& id : group) fetch_second(id);
    for (std::size_t i = 0; i < group.size(); ++i) found[first + i] = find(group[i], now_ms).has_value() ? 1 : 0;
  }
}

bool IndexReader::places(const Found& found, std::vector<Place>& places) const {
  places.clear();
  const SlotState state = SlotState::of(found.state);
  if (state.on_ssd()) return false;
  if (!state.scattered()) {
    if (found.held.bytes > 0) places.push_back(place_of(found.place, found.held.bytes));
    return unchanged(found);
  }
  if (found.place >= view_.shape.scattered) return false;
  const IndexPlaces& list = view_.scattered[found.place];
  std::uint64_t left = found.held.bytes;
  for (std::uint32_t i = 0; i < kMaxPlaces && left > 0; ++i) {
    const std::uint64_t length = list.length[i].load(std::memory_order_acquire);
    if (length == 0 || length > left) return false;
    places.push_back(place_of(list.place[i].load(std::memory_order_acquire), length));
    left -= length;
  }
  return left == 0 && unchanged(found);
}

std::optional<std::pair<ObjectId, Found>> IndexReader::at(std::uint32_t slot) const {
  std::pair<ObjectId, Found> found;
  Look look = Look::kChanged;
  for (int attempt = 0; look == Look::kChanged && attempt < kMaxSteps; ++attempt) {
    look = look_at(slot, found.first, found.second);
  }
  if (look != Look::kSeen) return std::nullopt;
  return found;
}

}  // namespace kvferry::store
