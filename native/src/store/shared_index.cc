#include "store/shared_index.h"

#include <array>

namespace kvferry::store {
namespace {

constexpr auto kWrite = std::memory_order_release;
constexpr auto kMine = std::memory_order_relaxed;  // what this writer itself wrote before

constexpr std::uint64_t kSuccessor = 0xffff'ffffULL;

}  // namespace

SharedIndex::SharedIndex(std::span<std::byte> memory, const IndexShape& shape, const NodeId& node)
    : view_(IndexView::of(memory.data(), shape)) {
  const auto words = std::bit_cast<std::array<std::uint64_t, 2>>(node.bytes);
  view_.header->node[0].store(words[0], kMine);
  view_.header->node[1].store(words[1], kMine);
  view_.header->slots.store(shape.slots, kMine);
  view_.header->buckets.store(shape.buckets, kMine);
  view_.header->scattered.store(shape.scattered, kMine);
  view_.header->magic.store(kIndexMagic, kWrite);
}

std::optional<std::uint32_t> SharedIndex::take_slot() {
  if (!spare_slots_.empty()) {
    const std::uint32_t slot = spare_slots_.back();
    spare_slots_.pop_back();
    return slot;
  }
  if (high_water_ == view_.shape.slots) return std::nullopt;
  return high_water_++;
}

void SharedIndex::give_slot(std::uint32_t slot) { spare_slots_.push_back(slot); }

SlotState SharedIndex::state(std::uint32_t slot) const { return SlotState::of(view_.slots[slot].state.load(kMine)); }

void SharedIndex::set_state(std::uint32_t slot, std::uint8_t flags, std::uint8_t replicas) {
  const SlotState now{state(slot).generation + 1, flags, replicas};
  // Sequentially consistent with the entries of the pins: of a reader that pins and a writer that takes away, one sees
  // the other.
  view_.slots[slot].state.store(now.word(), std::memory_order_seq_cst);
}

std::uint8_t SharedIndex::write_places(std::uint32_t slot, std::span<const Place> places) {
  IndexSlot& words = view_.slots[slot];
  if (places.size() <= 1) {
    words.place.store(places.empty() ? 0 : place_word(places[0]), kWrite);
    return 0;
  }
  std::uint32_t list = lists_used_;
  if (spare_lists_.empty()) {
    ++lists_used_;
  } else {
    list = spare_lists_.back();
    spare_lists_.pop_back();
  }
  for (std::size_t i = 0; i < kMaxPlaces; ++i) {
    const Place place = i < places.size() ? places[i] : Place{};
    view_.scattered[list].place[i].store(place_word(place), kWrite);
    view_.scattered[list].length[i].store(place.length, kWrite);
  }
  words.place.store(list, kWrite);
  return SlotState::kScattered;
}

void SharedIndex::drop_list(std::uint32_t slot, const SlotState& state) {
  if (state.scattered()) spare_lists_.push_back(static_cast<std::uint32_t>(view_.slots[slot].place.load(kMine)));
}

void SharedIndex::put(std::uint32_t slot, const Entry& entry, std::span<const Place> places) {
  IndexSlot& words = view_.slots[slot];
  const std::uint8_t scattered = write_places(slot, places);
  words.id[0].store(entry.id.hi, kWrite);
  words.id[1].store(entry.id.lo, kWrite);
  words.digest[0].store(entry.held.digest.hi, kWrite);
  words.digest[1].store(entry.held.digest.lo, kWrite);
  words.bytes.store(entry.held.bytes | entry.expires_ms >> 32 << 48, kWrite);
  IndexBucket& bucket = view_.bucket(entry.id);
  words.next.store(bucket.head.load(kMine) | entry.expires_ms << 32, kWrite);
  const std::uint8_t tier = entry.held.tier == Tier::kSsd ? SlotState::kOnSsd : 0;
  set_state(slot, static_cast<std::uint8_t>(SlotState::kHeld | tier | scattered),
            static_cast<std::uint8_t>(entry.held.replicas));
  bucket.head.store(slot + 1, kWrite);
}

void SharedIndex::erase(std::uint32_t slot) {
  const SlotState before = state(slot);
  set_state(slot, 0, 0);
  unlink(slot);
  drop_list(slot, before);
}

void SharedIndex::unlink(std::uint32_t slot) {
  IndexBucket& bucket = view_.bucket(id(slot));
  const std::uint64_t successor = view_.slots[slot].next.load(kMine) & kSuccessor;
  if (bucket.head.load(kMine) == slot + 1) {
    bucket.head.store(static_cast<std::uint32_t>(successor), kWrite);
  } else {
    std::uint32_t at = bucket.head.load(kMine) - 1;
    while ((view_.slots[at].next.load(kMine) & kSuccessor) != slot + 1) {
      at = static_cast<std::uint32_t>(view_.slots[at].next.load(kMine) & kSuccessor) - 1;
    }
    const std::uint64_t expiry = view_.slots[at].next.load(kMine) & ~kSuccessor;
    view_.slots[at].next.store(successor | expiry, kWrite);
  }
  bucket.changes.fetch_add(1, std::memory_order_acq_rel);
}

void SharedIndex::move_to_ssd(std::uint32_t slot) {
  const SlotState before = state(slot);
  set_state(slot, SlotState::kHeld | SlotState::kOnSsd, before.replicas);
  drop_list(slot, before);
}

void SharedIndex::move_to_memory(std::uint32_t slot, std::span<const Place> places) {
  // Nobody looks at the place of an object on SSD.
  const std::uint8_t scattered = write_places(slot, places);
  set_state(slot, static_cast<std::uint8_t>(SlotState::kHeld | scattered), state(slot).replicas);
}

ObjectId SharedIndex::id(std::uint32_t slot) const {
  return {view_.slots[slot].id[0].load(kMine), view_.slots[slot].id[1].load(kMine)};
}

std::uint64_t SharedIndex::expires_ms(std::uint32_t slot) const {
  const IndexSlot& words = view_.slots[slot];
  return words.bytes.load(kMine) >> 48 << 32 | words.next.load(kMine) >> 32;
}

SharedIndex::Entry SharedIndex::entry(std::uint32_t slot) const {
  const IndexSlot& words = view_.slots[slot];
  Entry entry;
  entry.id = id(slot);
  entry.expires_ms = expires_ms(slot);
  entry.held.bytes = words.bytes.load(kMine) & kMaxObjectBytes;
  entry.held.digest = {words.digest[0].load(kMine), words.digest[1].load(kMine)};
  entry.held.tier = state(slot).on_ssd() ? Tier::kSsd : Tier::kDram;
  entry.held.replicas = state(slot).replicas;
  return entry;
}

std::vector<Place> SharedIndex::places(std::uint32_t slot) const {
  std::vector<Place> places;
  const SlotState now = state(slot);
  const IndexSlot& words = view_.slots[slot];
  const std::uint64_t bytes = words.bytes.load(kMine) & kMaxObjectBytes;
  if (now.on_ssd() || bytes == 0) return places;
  if (!now.scattered()) return {place_of(words.place.load(kMine), bytes)};
  const IndexPlaces& list = view_.scattered[words.place.load(kMine)];
  for (std::size_t i = 0; i < kMaxPlaces && list.length[i].load(kMine) != 0; ++i) {
    places.push_back(place_of(list.place[i].load(kMine), list.length[i].load(kMine)));
  }
  return places;
}

}  // namespace kvferry::store
