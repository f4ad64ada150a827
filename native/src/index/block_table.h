// A hash table from block keys to 32-bit values in which almost every look-up touches one line of the cache.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "kvferry/block_key.h"

namespace kvferry::index {

// Three entries share a line of 64 bytes; what finds its line full goes to the next one that has room, and each line
// counts what passed it. The table consists of 256 parts, each of which grows and shrinks by itself, so that no
// insertion moves more than a 256th of all entries. Thread-compatible: const members may run side by side.
class BlockTable {
 public:
  BlockTable();

  // Where a key belongs; good for this table, whatever happens to it.
  struct Place {
    std::uint64_t low, high;  // of the key
    std::uint32_t part;
    std::uint32_t spread;  // which line of the part
  };
  Place place(const BlockKey& key) const {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    std::memcpy(&low, key.bytes.data(), sizeof(low));
    std::memcpy(&high, key.bytes.data() + sizeof(low), sizeof(high));
    if ((low | high) == 0) high = 1;  // zero marks a free slot; a hash is zero once in 2^128 times
    return place_of(low, high);
  }
  void prefetch(const Place& place) const {
    const Part& part = parts_[place.part];
    if (part.lines > 0) __builtin_prefetch(&part.first[part.home(place.spread)]);
  }
  // The key's value, or null. Good until the table changes.
  const std::uint32_t* find(const Place& place) const {
    const Found found = lookup(place);
    return found.line == nullptr ? nullptr : &found.line->values[found.slot];
  }
  std::uint32_t* find(const Place& place) {
    const Found found = lookup(place);
    return found.line == nullptr ? nullptr : &found.line->values[found.slot];
  }
  std::uint32_t& insert(const Place& place, std::uint32_t value);  // the key must be absent
  void erase(const Place& place);                                  // the key must be present

  static constexpr std::size_t kParts = 256;
  // Calls change(value) for each entry of a part, and erases those for which it returns false.
  template <typename Change>
  void filter(std::size_t part, Change&& change) {
    for (std::uint32_t i = 0; i < parts_[part].lines; ++i) {
      Line& line = parts_[part].first[i];
      for (std::size_t slot = 0; slot < kSlots; ++slot) {
        if (line.is_free(slot) || change(line.values[slot])) continue;
        remove(place_of(line.keys[slot][0], line.keys[slot][1]), i, slot);
      }
    }
    shrink(parts_[part]);
  }

  std::size_t size() const { return size_; }
  std::size_t memory_bytes() const { return lines_ * sizeof(Line) + sizeof(*this) + parts_.size() * sizeof(Part); }

 private:
  static constexpr std::size_t kSlots = 3;
  struct alignas(64) Line {
    std::array<std::array<std::uint64_t, 2>, kSlots> keys;  // zero: free
    std::array<std::uint32_t, kSlots> values;
    std::uint32_t passed;  // entries further on that belong here or before
    bool is_free(std::size_t slot) const { return (keys[slot][0] | keys[slot][1]) == 0; }
  };
  static_assert(sizeof(Line) == 64);
  struct Part {
    std::unique_ptr<Line[]> first;
    std::uint32_t lines = 0;
    std::uint32_t used = 0;  // entries
    std::uint32_t home(std::uint32_t spread) const {
      return static_cast<std::uint32_t>((std::uint64_t{spread} * lines) >> 32);
    }
    std::uint32_t next(std::uint32_t line) const { return line + 1 == lines ? 0 : line + 1; }
  };
  struct Found {
    Line* line;  // null: absent
    std::uint32_t number;
    std::size_t slot;
  };

  Place place_of(std::uint64_t low, std::uint64_t high) const {
    // Whoever sends keys cannot know where they land, and cannot make them all land in one place.
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(low ^ secret_low_) * (high ^ secret_high_);
    const std::uint64_t hash = static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
    return {low, high, static_cast<std::uint32_t>(hash % kParts), static_cast<std::uint32_t>(hash >> 32)};
  }
  Found lookup(const Place& place) const {
    const Part& part = parts_[place.part];
    if (part.lines == 0) return {nullptr, 0, 0};
    for (std::uint32_t number = part.home(place.spread);; number = part.next(number)) {
      Line& line = part.first[number];
      unsigned hits = 0;  // a bit for each slot: which one it is cannot be predicted, that there is one can
      for (std::size_t slot = 0; slot < kSlots; ++slot) {
        const bool is_it = ((line.keys[slot][0] ^ place.low) | (line.keys[slot][1] ^ place.high)) == 0;
        hits |= static_cast<unsigned>(is_it) << slot;
      }
      if (hits != 0) return {&line, number, static_cast<std::size_t>(std::countr_zero(hits))};
      if (line.passed == 0) return {nullptr, 0, 0};
    }
  }
  static std::uint32_t& put(Part& part, const Place& place, std::uint32_t value);
  void remove(const Place& place, std::uint32_t line, std::size_t slot);
  void shrink(Part& part);
  void resize(Part& part, std::uint32_t lines);

  std::uint64_t secret_low_;
  std::uint64_t secret_high_;
  std::size_t size_ = 0;
  std::size_t lines_ = 0;
  std::vector<Part> parts_;
};

}  // namespace kvferry::index
