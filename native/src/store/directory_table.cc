#include "store/directory_table.h"

#include <algorithm>

namespace kvferry::store {
namespace {

constexpr std::size_t kFirstSlots = 16;

}  // namespace

std::size_t DirectoryTable::slot_of(const ObjectId& id) const {
  std::size_t slot = home(id);
  while (slots_[slot] != kFree && at(slots_[slot]).id != id) slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

HolderEntry* DirectoryTable::find(const ObjectId& id) {
  if (size_ == 0) return nullptr;
  const std::uint32_t index = slots_[slot_of(id)];
  return index == kFree ? nullptr : &at(index);
}

HolderEntry& DirectoryTable::add(const ObjectId& id) {
  if (slots_.empty() || (size_ + 1) * 8 > slots_.size() * 7) grow();
  if (size_ == chunks_.size() * kChunk) chunks_.push_back(std::make_unique<HolderEntry[]>(kChunk));
  HolderEntry& entry = at(size_);
  entry = {};
  entry.id = id;
  slots_[slot_of(id)] = static_cast<std::uint32_t>(size_);
  ++size_;
  return entry;
}

void DirectoryTable::grow() {
  const std::size_t wanted = std::max(kFirstSlots, slots_.size() * 2);
  slots_.assign(wanted, kFree);
  for (std::size_t i = 0; i < size_; ++i) {
    std::size_t slot = home(at(i).id);
    while (slots_[slot] != kFree) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = static_cast<std::uint32_t>(i);
  }
}

void DirectoryTable::erase(HolderEntry* entry) {
  const std::size_t slot = slot_of(entry->id);
  const std::uint32_t index = slots_[slot];
  const HolderEntry& last = at(size_ - 1);
  if (index != size_ - 1) {
    slots_[slot_of(last.id)] = index;
    *entry = last;
  }
  --size_;
  close_gap(slot);
  if (chunks_.size() > size_ / kChunk + 2) chunks_.pop_back();
}

// Entries behind the gap whose home is at or before it move up, so that no search ends too early.
void DirectoryTable::close_gap(std::size_t gap) {
  const std::size_t mask = slots_.size() - 1;
  slots_[gap] = kFree;
  for (std::size_t slot = (gap + 1) & mask; slots_[slot] != kFree; slot = (slot + 1) & mask) {
    const std::size_t from_home = (slot - home(at(slots_[slot]).id)) & mask;
    if (from_home < ((slot - gap) & mask)) continue;
    slots_[gap] = slots_[slot];
    slots_[slot] = kFree;
    gap = slot;
  }
}

std::uint64_t DirectoryTable::memory_bytes() const {
  return chunks_.size() * kChunk * sizeof(HolderEntry) + slots_.capacity() * sizeof(std::uint32_t);
}

}  // namespace kvferry::store
