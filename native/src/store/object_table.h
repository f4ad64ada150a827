// The objects of a node: index, records, eviction policies and expiry, kept in step. Knows where objects lie, but not
// whose memory is free. Under the store's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "store/expiry_queue.h"
#include "store/index_reader.h"
#include "store/log/log.h"
#include "store/object_memory.h"
#include "store/object_records.h"
#include "store/policy/policy.h"
#include "store/shared_index.h"

namespace kvferry::store {

class ObjectTable {
 public:
  static Result<std::unique_ptr<ObjectTable>> create(std::span<std::byte> index, const NodeId& node,
                                                     const NodeOptions& options);

  // The slot of an object, be it expired or not.
  std::optional<Slot> find(const ObjectId& id) const;
  bool expired(Slot slot, std::uint64_t now_ms) const { return index_.expires_ms(slot) <= now_ms; }
  SharedIndex::Entry entry(Slot slot) const { return index_.entry(slot); }
  ObjectId id(Slot slot) const { return index_.id(slot); }
  std::vector<Place> places(Slot slot) const { return index_.places(slot); }
  std::uint64_t pin_word_of(Slot slot) const { return pin_word(slot, index_.generation(slot)); }
  bool holds(std::uint64_t pin_word) const;  // the object that was pinned by that name is there, unchanged
  NewObject describe(Slot slot, std::uint64_t now_ms) const;
  const ObjectRecords& records() const { return records_; }
  // Lock-free, for any thread.
  const IndexReader& reader() const { return reader_; }

  std::optional<Slot> take_slot() { return index_.take_slot(); }
  void give_slot(Slot slot) { index_.give_slot(slot); }
  std::uint64_t slots_left() const { return index_.slots_left(); }
  bool has_list_for(std::size_t places) const { return index_.has_list_for(places); }
  Slot slots_used() const { return index_.high_water(); }

  struct Placed {
    ContentDigest digest;
    Tier tier = Tier::kDram;
    std::vector<Place> places;
    std::uint64_t expires_ms = kNeverExpires;
  };
  void insert(Slot slot, const NewObject& object, const Placed& placed);
  // The object is invisible, its slot free again. What it had in memory is the caller's; in the log: see log_place().
  Retired erase(Slot slot);

  // Where the log of the SSD tier has the object, too.
  std::optional<LogPlace> log_place(Slot slot) const;
  void set_log_place(Slot slot, const LogPlace& place);
  void clear_log_place(Slot slot);
  // Out of memory, which is the caller's; it has a place in the log.
  Retired move_to_ssd(Slot slot);
  void move_to_memory(Slot slot, std::span<const Place> places);
  void accessed(Slot slot);
  // Of a client's note: maybe of nothing.
  void maybe_accessed(Slot slot);

  // Slots of objects whose time has come.
  std::vector<Slot> take_expired(std::uint64_t now_ms);
  // The object in memory to give up next: replicas beyond the wanted ones, then as the policy says. kNoSlot if there is
  // none that may be taken.
  Slot victim(const EvictionPolicy::MayTake& may_take);
  // The object in the log to erase there next. It may be in memory, too.
  Slot ssd_victim(const EvictionPolicy::MayTake& may_take) { return first_victim(*ssd_policy_, logged_, may_take); }

  std::uint64_t objects() const { return dram_objects_ + ssd_objects_; }
  std::uint64_t dram_objects() const { return dram_objects_; }
  std::uint64_t ssd_objects() const { return ssd_objects_; }
  std::uint64_t logged() const { return logged_; }          // those that are in memory, too, included
  std::uint64_t dram_bytes() const { return dram_bytes_; }  // rounded as the arenas do
  std::uint64_t index_bytes() const { return index_.bytes(); }
  std::uint64_t memory_bytes() const;  // of everything, the index included
  // kInternal unless index, records and counts agree.
  Status check() const;

 private:
  ObjectTable(SharedIndex index, IndexReader reader, const NodeOptions& options);
  struct LogSlot {
    std::uint32_t segment = 0;
    std::uint32_t record = kNoSlot;  // kNoSlot: not in the log
  };
  bool in_log(Slot slot) const { return slot < log_slots_.size() && log_slots_[slot].record != kNoSlot; }
  ObjectFacts facts(Slot slot) const;
  ObjectsView view() const;
  void count(const Held& held, bool more);
  static Slot first_victim(EvictionPolicy& policy, std::uint64_t objects, const EvictionPolicy::MayTake& may_take);
  Retired retired(Slot slot) const;
  Slot extra_victim(const EvictionPolicy::MayTake& may_take);
  bool is_extra(Slot slot) const;

  SharedIndex index_;
  IndexReader reader_;
  ObjectRecords records_;
  ExpiryQueue expiry_;
  std::unique_ptr<EvictionPolicy> dram_policy_;  // of what is in memory
  std::unique_ptr<EvictionPolicy> ssd_policy_;   // of what is in the log
  std::deque<LogSlot> log_slots_;                // by slot, as far as any is in the log
  std::deque<Slot> extras_;                      // oldest first; some may be gone
  std::uint64_t dram_objects_ = 0;
  std::uint64_t ssd_objects_ = 0;
  std::uint64_t logged_ = 0;
  std::uint64_t dram_bytes_ = 0;
};

}  // namespace kvferry::store
