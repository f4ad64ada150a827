// Block keys with 32-bit values. A chain whose blocks came together is followed without any look-up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "index/block_store.h"
#include "kvferry/block_key.h"

namespace kvferry::index {

// The blocks lie in a store, in the order in which they came; a hash table knows the place of each. The table consists
// of 256 parts, each of which grows and shrinks by itself, so that no insertion moves more than a 256th of all entries.
// Thread-compatible: const members may run side by side.
class BlockTable {
 public:
  using Position = BlockStore::Position;
  static constexpr Position kNone = BlockStore::kNone;

  BlockTable();

  // Where a key belongs; good for this table, whatever happens to it.
  struct Place {
    KeyWords key{};
    std::uint32_t part = 0;
    std::uint32_t spread = 0;  // which slot of the part
  };
  Place place(const BlockKey& key) const { return place_of(words_of(key)); }
  void prefetch(const Place& place) const {
    const Part& part = parts_[place.part];
    if (part.slots > 0) __builtin_prefetch(&part.first[part.home(place.spread)]);
  }
  // Where the key may be, without looking at it; kNone if it is absent.
  Position guess(const Place& place) const;
  void prefetch(Position position) const { blocks_.prefetch(position); }
  // The key's value if it is at `position`, which may be any number; null if it is not.
  const std::uint32_t* at(Position position, const BlockKey& key) const { return blocks_.at(position, words_of(key)); }

  Position locate(const Place& place) const;  // kNone if the key is absent
  // The key's value, or null. Good until the table changes.
  const std::uint32_t* find(const Place& place) const { return blocks_.at(locate(place), place.key); }
  std::uint32_t* find(const Place& place) {
    const Position position = locate(place);
    return position == kNone ? nullptr : &blocks_.value(position);
  }
  void insert(const Place& place, std::uint32_t value);  // the key must be absent
  void erase(const Place& place);                        // the key must be present

  // What is there now is all in chunks 0 to chunks() - 1. Later it may be in other ones, but only in those before: who
  // looks at them from the last to the first misses none.
  std::size_t chunks() const { return blocks_.chunks(); }
  // Calls change(value) for each entry of a chunk, and erases those for which it returns false.
  template <typename Change>
  void filter(std::size_t chunk, Change&& change) {
    blocks_.each(chunk, [&](Position position, const KeyWords& key) {
      if (!change(blocks_.value(position))) take_out(place_of(key), position);
    });
    tighten();
  }

  std::size_t size() const { return blocks_.size(); }
  std::size_t memory_bytes() const {
    return blocks_.memory_bytes() + slots_ * sizeof(Slot) + sizeof(*this) + parts_.size() * sizeof(Part);
  }

 private:
  static constexpr std::size_t kParts = 256;
  struct Slot {
    std::uint32_t spread = 0;
    Position position = kNone;  // kNone: free
  };
  struct Part {  // open addressing, linear probing
    std::unique_ptr<Slot[]> first;
    std::uint32_t slots = 0;
    std::uint32_t used = 0;
    std::uint32_t home(std::uint32_t spread) const {
      return static_cast<std::uint32_t>((std::uint64_t{spread} * slots) >> 32);
    }
    std::uint32_t after(std::uint32_t slot) const { return slot + 1 == slots ? 0 : slot + 1; }
  };

  Place place_of(const KeyWords& key) const {
    // Whoever sends keys cannot know where they land, and cannot make them all land in one place.
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(key.low ^ secret_low_) * (key.high ^ secret_high_);
    const std::uint64_t hash = static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
    return {key, static_cast<std::uint32_t>(hash % kParts), static_cast<std::uint32_t>(hash >> 32)};
  }
  static void put(Part& part, const Slot& slot);
  static std::uint32_t slot_of(const Part& part, const Place& place, Position position);
  void take_out(const Place& place, Position position);
  void tighten();
  void resize(Part& part, std::uint32_t slots);

  std::uint64_t secret_low_;
  std::uint64_t secret_high_;
  BlockStore blocks_;
  std::size_t slots_ = 0;
  std::vector<Part> parts_;
};

}  // namespace kvferry::index
