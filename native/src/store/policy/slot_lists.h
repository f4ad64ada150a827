// Several doubly linked lists over the slots of one table; a slot is in one of them or in none. 8 bytes a slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "store/policy/policy.h"

namespace kvferry::store {

// An entry for each slot, in pieces, so that growing moves nothing and no memory is held for nothing.
template <typename T>
class SlotTable {
 public:
  T& operator[](Slot slot) { return pieces_[slot / kPiece][slot % kPiece]; }
  const T& operator[](Slot slot) const { return pieces_[slot / kPiece][slot % kPiece]; }
  void make_room_for(Slot slot) {
    while (slot / kPiece >= pieces_.size()) pieces_.push_back(std::make_unique<T[]>(kPiece));
  }
  std::uint64_t memory_bytes() const {
    return pieces_.size() * kPiece * sizeof(T) + pieces_.capacity() * sizeof(pieces_[0]);
  }

 private:
  static constexpr std::size_t kPiece = 1024;
  std::vector<std::unique_ptr<T[]>> pieces_;
};

class SlotLists {
 public:
  explicit SlotLists(std::uint32_t lists) : heads_(lists) {
    for (std::uint32_t list = 0; list < lists; ++list) heads_[list] = {kHeads + list, kHeads + list};
  }

  void make_room_for(Slot slot) { links_.make_room_for(slot); }
  bool empty(std::uint32_t list) const { return heads_[list].next >= kHeads; }
  Slot front(std::uint32_t list) const { return empty(list) ? kNoSlot : heads_[list].next; }
  Slot back(std::uint32_t list) const { return empty(list) ? kNoSlot : heads_[list].prev; }
  void push_back(std::uint32_t list, Slot slot) { insert(slot, heads_[list].prev, kHeads + list); }
  void push_front(std::uint32_t list, Slot slot) { insert(slot, kHeads + list, heads_[list].next); }
  void unlink(Slot slot) {
    const Links links = links_[slot];
    at(links.prev).next = links.next;
    at(links.next).prev = links.prev;
  }
  // All of `from` behind all of `to`.
  void append(std::uint32_t from, std::uint32_t to) {
    if (empty(from)) return;
    Links& source = heads_[from];
    Links& target = heads_[to];
    at(source.next).prev = target.prev;
    at(target.prev).next = source.next;
    at(source.prev).next = kHeads + to;
    target.prev = source.prev;
    source = {kHeads + from, kHeads + from};
  }
  // Two numbers that a slot which is in no list may keep in place of its links.
  std::uint32_t& note(Slot slot) { return links_[slot].prev; }
  std::uint32_t& other_note(Slot slot) { return links_[slot].next; }

  std::uint64_t memory_bytes() const { return links_.memory_bytes() + heads_.capacity() * sizeof(Links); }

 private:
  static constexpr std::uint32_t kHeads = 0xFFFF0000;  // from here on a number means a list
  struct Links {
    std::uint32_t prev = 0;
    std::uint32_t next = 0;
  };

  Links& at(std::uint32_t index) { return index >= kHeads ? heads_[index - kHeads] : links_[index]; }
  void insert(Slot slot, std::uint32_t prev, std::uint32_t next) {
    links_[slot] = {prev, next};
    at(prev).next = slot;
    at(next).prev = slot;
  }

  SlotTable<Links> links_;
  std::vector<Links> heads_;
};

}  // namespace kvferry::store
