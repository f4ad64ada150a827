#include "index/block_table.h"

#include <algorithm>
#include <utility>

#include "base/random.h"

namespace kvferry::index {
namespace {

// Full to 3/4 at most, to 1/2 after growing by half, and to 4/9 at least: 48 bytes for each entry.
constexpr std::uint64_t kFullNumerator = 3;
constexpr std::uint64_t kFullDenominator = 4;
constexpr std::uint32_t kFewestLines = 2;

}  // namespace

BlockTable::BlockTable() : secret_low_(random_u64()), secret_high_(random_u64()), parts_(kParts) {}

std::uint32_t& BlockTable::put(Part& part, const Place& place, std::uint32_t value) {
  for (std::uint32_t number = part.home(place.spread);; number = part.next(number)) {
    Line& line = part.first[number];
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      if (!line.is_free(slot)) continue;
      line.keys[slot] = {place.low, place.high};
      line.values[slot] = value;
      return line.values[slot];
    }
    ++line.passed;
  }
}

std::uint32_t& BlockTable::insert(const Place& place, std::uint32_t value) {
  Part& part = parts_[place.part];
  const std::uint64_t slots = std::uint64_t{part.lines} * kSlots;
  if ((part.used + 1) * kFullDenominator > slots * kFullNumerator) {
    resize(part, std::max(kFewestLines, part.lines + part.lines / 2));
  }
  ++part.used;
  ++size_;
  return put(part, place, value);
}

void BlockTable::remove(const Place& place, std::uint32_t line, std::size_t slot) {
  Part& part = parts_[place.part];
  for (std::uint32_t i = part.home(place.spread); i != line; i = part.next(i)) --part.first[i].passed;
  part.first[line].keys[slot] = {0, 0};
  --part.used;
  --size_;
}

void BlockTable::erase(const Place& place) {
  const Found found = lookup(place);
  remove(place, found.number, found.slot);
  shrink(parts_[place.part]);
}

void BlockTable::shrink(Part& part) {
  const std::uint32_t wanted = part.used == 0 ? 0 : std::max(kFewestLines, part.used / 2 + 1);
  if (std::uint64_t{3} * wanted < std::uint64_t{2} * part.lines || wanted == 0) resize(part, wanted);
}

void BlockTable::resize(Part& part, std::uint32_t lines) {
  const Part old = std::move(part);
  part = Part{lines == 0 ? nullptr : std::make_unique<Line[]>(lines), lines, old.used};
  lines_ += lines;
  lines_ -= old.lines;
  for (std::uint32_t i = 0; i < old.lines; ++i) {
    const Line& line = old.first[i];
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      if (!line.is_free(slot)) put(part, place_of(line.keys[slot][0], line.keys[slot][1]), line.values[slot]);
    }
  }
}

}  // namespace kvferry::index
