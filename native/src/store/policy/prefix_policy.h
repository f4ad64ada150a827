// Keeps what is likely to be used again soon, and of a chain of blocks the beginning longer than the end.
//
// Only leaves, objects without a child held here, are given up: of those the one of the least worth to a ReuseModel,
// which judges by how often an object was used (counted on when it comes back after it went) and how long ago. Objects
// of the current epoch come last, so that a chain is not lost while it is being put.
//
// Objects that stand alone, put without a parent and still without a child, say nothing by their place in a chain, and
// may be few among chains that nobody uses again when they are new. So they are fresh at first: as long as all fresh
// ones have not more than a quarter of the capacity they go last, the oldest first, and only then are they judged.
//
// 22 bytes an object at most: links 8, facts 8, memory of those that went 3 to 6; and 100 KiB for the model. Ids are
// the table's. A leaf that is not fresh is in the list of its age, the others have their epoch where they need no links
// or no parent.
#pragma once

#include <array>
#include <cstdint>

#include "store/policy/chain_table.h"
#include "store/policy/history.h"
#include "store/policy/policy.h"
#include "store/policy/reuse_model.h"
#include "store/policy/slot_lists.h"

namespace kvferry::store {

class PrefixPolicy final : public EvictionPolicy {
 public:
  PrefixPolicy(std::uint64_t capacity_bytes, ObjectsView objects);

  void insert(Slot slot, const ObjectFacts& facts) override;
  void access(Slot slot) override;
  void erase(Slot slot) override;
  Slot victim(const MayTake& may_take) override;
  std::uint64_t memory_bytes() const override;

 private:
  static constexpr std::uint32_t kAges = ReuseModel::kAges;
  static constexpr std::uint32_t kFresh = ReuseModel::kClasses * kAges;  // the list of fresh objects
  static constexpr std::uint32_t kLists = kFresh + 1;  // of leaves: by class and age, and the fresh ones

  std::uint32_t list_of(const ChainTable::Entry& entry, ReuseModel::Epoch last_use) const;
  void add_leaf(Slot slot, ReuseModel::Epoch last_use);
  void remove_leaf(Slot slot);
  void judge(Slot slot);  // it is fresh no more
  void judge_some();
  void child_came(Slot parent);
  void child_went(Slot parent);
  void spend(std::uint64_t bytes);
  void begin_epoch();
  void rank_lists();

  std::uint64_t epoch_bytes_;
  std::uint64_t spent_bytes_ = 0;  // in this epoch
  std::uint32_t spent_uses_ = 0;
  std::uint64_t fresh_capacity_;
  std::uint64_t fresh_bytes_ = 0;  // of fresh objects
  std::uint64_t gone_bytes_ = 0;   // of objects that went since judge_some()
  std::uint64_t owed_bytes_ = 0;   // of fresh ones that were too large for their turn then
  std::uint64_t mean_bytes_ = 0;   // of an object: what a use counts for
  ReuseModel::Epoch epoch_ = 0;
  const ObjectsView table_;
  ChainTable objects_;
  SlotLists leaves_{kLists};
  History gone_;  // with their uses
  ReuseModel model_;
  std::array<std::uint16_t, kLists> order_{};  // lists, of the least worth first
  std::array<std::uint16_t, kLists> rank_{};   // places of lists in it
  std::uint32_t first_ = 0;                    // no list before this place has a leaf
  Slot came_round_ = kNoSlot;                  // of the list there, the first one that victim() found in use
};

}  // namespace kvferry::store
