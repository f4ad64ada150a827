// The objects of a policy as chains: which one is the parent of which, for the slots of one table.
//
// A child that came before its parent, or whose parent was erased, has none. Of a slot it is known only modulo 256 how
// often it was used: a child whose parent's slot was used that often since may be taken for one of another object,
// which then goes a little too early.
#pragma once

#include <cstdint>

#include "store/policy/policy.h"
#include "store/policy/slot_lists.h"

namespace kvferry::store {

class ChainTable {
 public:
  struct Entry {
    std::uint32_t parent = kNoSlot;  // of a fresh object, which has none: the epoch of its last use
    std::uint8_t life = 0;           // how often the slot was used, modulo 2^8
    std::uint8_t parent_life = 0;    // of its parent's slot when this was its child
    std::uint8_t size_code = 0;      // its bytes, about
    std::uint8_t uses : 4 = 0;
    std::uint8_t held : 1 = 0;
    std::uint8_t leaf : 1 = 0;
    std::uint8_t alone : 1 = 0;  // put without a parent, and never had a child
    std::uint8_t fresh : 1 = 0;  // alone, and not yet judged by its uses
  };
  static_assert(sizeof(Entry) == 8);

  // Makes the entry of a new object, a leaf, and returns it; it is a child of `parent` if that is held.
  Entry& insert(Slot slot, std::optional<Slot> parent);
  void erase(Slot slot);
  Entry& operator[](Slot slot) { return entries_[slot]; }
  // The parent, if it is still the object that it was.
  std::optional<Slot> parent_of(Slot slot) const;

  std::uint64_t size() const { return size_; }
  std::uint64_t memory_bytes() const { return entries_.memory_bytes(); }

 private:
  SlotTable<Entry> entries_;
  std::uint64_t size_ = 0;
  Slot end_ = 0;  // slots from here on have no entries yet
};

}  // namespace kvferry::store
