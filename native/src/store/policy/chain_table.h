// The objects of a node as chains: which one is the parent of which, for the slots of one table.
//
// Parents are found by tags, 32 bits of an id. Of a million objects a few hundred have a parent that is another object
// with the same tag: it is then kept longer than need be. A child that came before its parent, or whose parent was
// erased, has none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "store/policy/policy.h"

namespace kvferry::store {

class ChainTable {
 public:
  struct Entry {
    Slot parent = kNoSlot;
    std::uint32_t tag = 0;
    std::uint16_t life = 0;         // how often the slot was used, modulo 2^16
    std::uint16_t parent_life = 0;  // of its parent's slot when this was its child
    std::uint16_t epoch = 0;        // of its last use, modulo 2^16
    std::uint8_t uses : 4 = 0;
    std::uint8_t leaf : 1 = 1;
    std::uint8_t alone : 1 = 0;  // put without a parent, and never had a child
    std::uint8_t fresh : 1 = 0;  // alone, and not yet judged by its uses
    std::uint8_t size_code = 0;  // its bytes, about
  };
  static_assert(sizeof(Entry) == 16);

  // Makes the entry of a new object and returns it; its parent is set if that is here.
  Entry& insert(Slot slot, const ObjectFacts& facts);
  void erase(Slot slot);
  Entry& operator[](Slot slot) { return entries_[slot]; }
  // The parent, if it is still the object that it was.
  Slot parent_of(Slot slot) const;

  std::size_t size() const { return size_; }
  std::uint64_t memory_bytes() const { return entries_.capacity() * sizeof(Entry) + index_.capacity() * sizeof(Slot); }

 private:
  std::size_t home(std::uint32_t tag) const { return (std::uint64_t{tag} * index_.size()) >> 32; }
  std::size_t after(std::size_t place) const { return place + 1 == index_.size() ? 0 : place + 1; }
  Slot find(std::uint32_t tag) const;
  void add_to_index(Slot slot);
  void grow_index();

  std::vector<Entry> entries_;
  std::vector<Slot> index_;  // open addressing, linear probing, at most seven eighths full
  std::size_t size_ = 0;
};

}  // namespace kvferry::store
