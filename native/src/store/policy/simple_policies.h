// The policies that know each object for itself: LRU, LFU with aging, S3-FIFO.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "store/policy/history.h"
#include "store/policy/policy.h"
#include "store/policy/slot_lists.h"

namespace kvferry::store {

class LruPolicy final : public EvictionPolicy {  // 8 bytes an object
 public:
  void insert(Slot slot, const ObjectFacts& facts) override;
  void access(Slot slot) override;
  void erase(Slot slot) override { lists_.unlink(slot); }
  Slot victim(const MayTake& may_take) override;
  std::uint64_t memory_bytes() const override { return lists_.memory_bytes(); }

 private:
  SlotLists lists_{1};  // the next to go in front
};

// Least frequently used with dynamic aging (Arlitt et al., 2000): an object's key is its uses plus the key of the
// object given up last, so what was popular long ago goes in the end. Keys in use span fewer than kKeys values.
class LfuPolicy final : public EvictionPolicy {  // 10 bytes an object
 public:
  void insert(Slot slot, const ObjectFacts& facts) override;
  void access(Slot slot) override;
  void erase(Slot slot) override { lists_.unlink(slot); }
  Slot victim(const MayTake& may_take) override;
  std::uint64_t memory_bytes() const override { return lists_.memory_bytes() + uses_.memory_bytes(); }

 private:
  static constexpr std::uint32_t kKeys = 256;
  struct Uses {
    std::uint8_t count = 0;
    std::uint8_t key = 0;  // modulo kKeys: its list
  };

  void put(Slot slot, std::uint8_t count);

  SlotLists lists_{kKeys};
  SlotTable<Uses> uses_;
  std::uint8_t floor_ = 0;  // modulo kKeys: no object has a lower key
};

// S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023): new objects wait in a small
// queue of a tenth of the capacity; those used there go on to the main one, the others leave and are remembered by
// their ids. In the main queue an object that was used goes round again, up to three times.
class S3FifoPolicy final : public EvictionPolicy {  // 22 bytes an object
 public:
  explicit S3FifoPolicy(std::uint64_t capacity_bytes) : small_capacity_(capacity_bytes / 10) {}

  void insert(Slot slot, const ObjectFacts& facts) override;
  void access(Slot slot) override;
  void erase(Slot slot) override;
  Slot victim(const MayTake& may_take) override;
  std::uint64_t memory_bytes() const override;

 private:
  static constexpr std::uint32_t kSmall = 0;
  static constexpr std::uint32_t kMain = 1;
  struct Entry {
    std::uint32_t tag = 0;
    std::uint32_t kib = 0;  // its size, at least one
    std::uint8_t uses : 2 = 0;
    std::uint8_t queue : 1 = 0;
    std::uint8_t leaving : 1 = 0;  // was named as the victim
  };

  void move_to_main(Slot slot);
  void go_round(Slot slot);

  std::uint64_t small_capacity_;
  std::uint64_t small_bytes_ = 0;
  std::uint64_t objects_ = 0;
  SlotLists lists_{2};
  SlotTable<Entry> entries_;
  History history_{1};
};

}  // namespace kvferry::store
