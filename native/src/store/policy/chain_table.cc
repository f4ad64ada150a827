#include "store/policy/chain_table.h"

#include <algorithm>

#include "store/policy/history.h"
#include "store/policy/slot_lists.h"

namespace kvferry::store {

ChainTable::Entry& ChainTable::insert(Slot slot, const ObjectFacts& facts) {
  make_room(entries_, slot);
  if ((size_ + 1) * 8 > index_.size() * 7) grow_index();
  Entry& entry = entries_[slot];
  const std::uint16_t life = entry.life;
  entry = {};
  entry.tag = tag_of(facts.id);
  entry.life = life;
  if (!facts.parent.is_nil()) entry.parent = find(tag_of(facts.parent));
  if (entry.parent != kNoSlot) entry.parent_life = entries_[entry.parent].life;
  add_to_index(slot);
  ++size_;
  return entry;
}

void ChainTable::erase(Slot slot) {
  ++entries_[slot].life;
  std::size_t hole = home(entries_[slot].tag);
  while (index_[hole] != slot) hole = after(hole);
  // Whoever stands behind the hole and would have stood in it, moves up.
  for (std::size_t at = after(hole); index_[at] != kNoSlot; at = after(at)) {
    const std::size_t wanted = home(entries_[index_[at]].tag);
    const bool between = hole <= at ? hole < wanted && wanted <= at : hole < wanted || wanted <= at;
    if (between) continue;
    index_[hole] = index_[at];
    hole = at;
  }
  index_[hole] = kNoSlot;
  --size_;
}

Slot ChainTable::parent_of(Slot slot) const {
  const Entry& entry = entries_[slot];
  if (entry.parent == kNoSlot || entries_[entry.parent].life != entry.parent_life) return kNoSlot;
  return entry.parent;
}

Slot ChainTable::find(std::uint32_t tag) const {
  for (std::size_t at = home(tag); index_[at] != kNoSlot; at = after(at)) {
    if (entries_[index_[at]].tag == tag) return index_[at];
  }
  return kNoSlot;
}

void ChainTable::add_to_index(Slot slot) {
  std::size_t at = home(entries_[slot].tag);
  while (index_[at] != kNoSlot) at = after(at);
  index_[at] = slot;
}

void ChainTable::grow_index() {
  std::vector<Slot> before(std::max<std::size_t>(64, index_.size() + index_.size() / 3), kNoSlot);
  before.swap(index_);
  for (const Slot slot : before) {
    if (slot != kNoSlot) add_to_index(slot);
  }
}

}  // namespace kvferry::store
