#include "index/block_table.h"

#include <algorithm>
#include <utility>

#include "base/random.h"

namespace kvferry::index {
namespace {

// Full to 3/4 at most, to 1/2 after growing by half, and to 4/9 at least: 18 bytes for each entry.
constexpr std::uint64_t kFullNumerator = 3;
constexpr std::uint64_t kFullDenominator = 4;
constexpr std::uint32_t kFewestSlots = 8;

}  // namespace

BlockTable::BlockTable() : secret_low_(random_u64()), secret_high_(random_u64()), parts_(kParts) {}

BlockTable::Position BlockTable::guess(const Place& place) const {
  const Part& part = parts_[place.part];
  if (part.slots == 0) return kNone;
  std::uint32_t at = part.home(place.spread);
  while (part.first[at].position != kNone && part.first[at].spread != place.spread) at = part.after(at);
  return part.first[at].position;
}

BlockTable::Position BlockTable::locate(const Place& place) const {
  const Part& part = parts_[place.part];
  if (part.slots == 0) return kNone;
  for (std::uint32_t at = part.home(place.spread);; at = part.after(at)) {
    const Slot& slot = part.first[at];
    if (slot.position == kNone) return kNone;
    if (slot.spread == place.spread && blocks_.at(slot.position, place.key) != nullptr) return slot.position;
  }
}

void BlockTable::put(Part& part, const Slot& slot) {
  std::uint32_t at = part.home(slot.spread);
  while (part.first[at].position != kNone) at = part.after(at);
  part.first[at] = slot;
}

std::uint32_t BlockTable::slot_of(const Part& part, const Place& place, Position position) {
  std::uint32_t at = part.home(place.spread);
  while (part.first[at].position != position) at = part.after(at);
  return at;
}

void BlockTable::insert(const Place& place, std::uint32_t value) {
  Part& part = parts_[place.part];
  if ((std::uint64_t{part.used} + 1) * kFullDenominator > std::uint64_t{part.slots} * kFullNumerator) {
    resize(part, std::max(kFewestSlots, part.slots + part.slots / 2));
  }
  ++part.used;
  put(part, {place.spread, blocks_.add(place.key, value)});
}

void BlockTable::erase(const Place& place) {
  take_out(place, locate(place));
  tighten();
}

void BlockTable::take_out(const Place& place, Position position) {
  blocks_.remove(position);
  Part& part = parts_[place.part];
  std::uint32_t hole = slot_of(part, place, position);
  // Whoever stands behind the hole and would have stood in it, moves up.
  for (std::uint32_t at = part.after(hole); part.first[at].position != kNone; at = part.after(at)) {
    const std::uint32_t wanted = part.home(part.first[at].spread);
    const bool between = hole <= at ? hole < wanted && wanted <= at : hole < wanted || wanted <= at;
    if (between) continue;
    part.first[hole] = part.first[at];
    hole = at;
  }
  part.first[hole] = {};
  --part.used;
  const std::uint32_t wanted = part.used == 0 ? 0 : std::max(kFewestSlots, part.used + part.used / 2 + 1);
  if (std::uint64_t{3} * wanted < std::uint64_t{2} * part.slots || wanted == 0) resize(part, wanted);
}

void BlockTable::tighten() {
  blocks_.tighten([&](const KeyWords& key, Position from, Position to) {
    const Place place = place_of(key);
    Part& part = parts_[place.part];
    part.first[slot_of(part, place, from)].position = to;
  });
}

void BlockTable::resize(Part& part, std::uint32_t slots) {
  const Part old = std::move(part);
  part = Part{slots == 0 ? nullptr : std::make_unique<Slot[]>(slots), slots, old.used};
  slots_ += slots;
  slots_ -= old.slots;
  for (std::uint32_t i = 0; i < old.slots; ++i) {
    if (old.first[i].position != kNone) put(part, old.first[i]);
  }
}

}  // namespace kvferry::index
