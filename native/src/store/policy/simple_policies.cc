#include "store/policy/simple_policies.h"

#include <algorithm>

namespace kvferry::store {

void LruPolicy::insert(Slot slot, const ObjectFacts& /*facts*/) {
  lists_.make_room_for(slot);
  lists_.push_back(0, slot);
}

void LruPolicy::access(Slot slot) {
  lists_.unlink(slot);
  lists_.push_back(0, slot);
}

Slot LruPolicy::victim(const MayTake& may_take) {
  for (int looks = 0; looks < kMaxLooks; ++looks) {
    const Slot slot = lists_.front(0);
    if (slot == kNoSlot || may_take(slot)) return slot;
    access(slot);  // it is in use
  }
  return kNoSlot;
}

void LfuPolicy::put(Slot slot, std::uint8_t count) {
  const auto key = static_cast<std::uint8_t>(floor_ + count);
  uses_[slot] = {count, key};
  lists_.push_back(key, slot);
}

void LfuPolicy::insert(Slot slot, const ObjectFacts& /*facts*/) {
  lists_.make_room_for(slot);
  uses_.make_room_for(slot);
  put(slot, 1);
}

void LfuPolicy::access(Slot slot) {
  lists_.unlink(slot);
  put(slot, static_cast<std::uint8_t>(std::min<std::uint32_t>(uses_[slot].count + 1u, kKeys - 1)));
}

Slot LfuPolicy::victim(const MayTake& may_take) {
  std::uint32_t ahead = 0;  // of the floor
  for (int looks = 0; looks < kMaxLooks && ahead < kKeys;) {
    const auto key = static_cast<std::uint8_t>(floor_ + ahead);
    const Slot slot = lists_.front(key);
    if (slot == kNoSlot) {
      ++ahead;
      continue;
    }
    if (may_take(slot)) {
      floor_ = key;
      return slot;
    }
    ++looks;
    access(slot);  // it is in use
  }
  return kNoSlot;
}

void S3FifoPolicy::insert(Slot slot, const ObjectFacts& facts) {
  lists_.make_room_for(slot);
  entries_.make_room_for(slot);
  history_.make_room_for(++objects_);
  Entry& entry = entries_[slot];
  entry = {};
  entry.tag = tag_of(facts.id);
  entry.kib = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(facts.bytes >> 10, 1, UINT32_MAX));
  entry.queue = history_.take(entry.tag) ? kMain : kSmall;
  if (entry.queue == kSmall) small_bytes_ += std::uint64_t{entry.kib} << 10;
  lists_.push_back(entry.queue, slot);
}

void S3FifoPolicy::access(Slot slot) {
  Entry& entry = entries_[slot];
  entry.leaving = 0;
  if (entry.uses < 3) ++entry.uses;
}

void S3FifoPolicy::erase(Slot slot) {
  const Entry& entry = entries_[slot];
  if (entry.queue == kSmall) {
    small_bytes_ -= std::uint64_t{entry.kib} << 10;
    if (entry.leaving) history_.put(entry.tag, 0);
  }
  lists_.unlink(slot);
  --objects_;
}

void S3FifoPolicy::move_to_main(Slot slot) {
  Entry& entry = entries_[slot];
  small_bytes_ -= std::uint64_t{entry.kib} << 10;
  entry.queue = kMain;
  entry.uses = 0;
  lists_.unlink(slot);
  lists_.push_back(kMain, slot);
}

void S3FifoPolicy::go_round(Slot slot) {
  Entry& entry = entries_[slot];
  if (entry.uses > 0) --entry.uses;
  lists_.unlink(slot);
  lists_.push_back(kMain, slot);
}

Slot S3FifoPolicy::victim(const MayTake& may_take) {
  for (int looks = 0; looks < kMaxLooks; ++looks) {
    // The call has to end: its second half spares nobody and looks into both queues in turn.
    const bool patient = looks < kMaxLooks / 2;
    const bool wanted = patient ? small_bytes_ >= small_capacity_ : looks % 2 == 0;
    const bool small = !lists_.empty(kSmall) && (wanted || lists_.empty(kMain));
    const Slot slot = lists_.front(small ? kSmall : kMain);
    if (slot == kNoSlot) return kNoSlot;
    const bool spared = patient && entries_[slot].uses > (small ? 1 : 0);
    if (!spared && may_take(slot)) {
      entries_[slot].leaving = 1;
      return slot;
    }
    if (small) {
      move_to_main(slot);
    } else {
      go_round(slot);
    }
  }
  return kNoSlot;
}

std::uint64_t S3FifoPolicy::memory_bytes() const {
  return lists_.memory_bytes() + entries_.memory_bytes() + history_.memory_bytes();
}

}  // namespace kvferry::store
