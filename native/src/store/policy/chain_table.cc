#include "store/policy/chain_table.h"

#include <algorithm>

namespace kvferry::store {

ChainTable::Entry& ChainTable::insert(Slot slot, std::optional<Slot> parent) {
  entries_.make_room_for(slot);
  end_ = std::max(end_, slot + 1);
  Entry& entry = entries_[slot];
  const std::uint8_t life = entry.life;
  entry = {};
  entry.life = life;
  if (parent && *parent < end_ && entries_[*parent].held) {
    entry.parent = *parent;
    entry.parent_life = entries_[*parent].life;
  }
  entry.held = entry.leaf = 1;
  ++size_;
  return entry;
}

void ChainTable::erase(Slot slot) {
  ++entries_[slot].life;
  entries_[slot].held = 0;
  --size_;
}

std::optional<Slot> ChainTable::parent_of(Slot slot) const {
  const Entry& entry = entries_[slot];
  if (entry.fresh || entry.parent == kNoSlot) return std::nullopt;
  const Entry& parent = entries_[entry.parent];
  if (!parent.held || parent.leaf || parent.life != entry.parent_life) return std::nullopt;
  return entry.parent;
}

}  // namespace kvferry::store
