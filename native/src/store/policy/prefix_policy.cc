#include "store/policy/prefix_policy.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

namespace kvferry::store {
namespace {

constexpr std::uint64_t kEpochsToFill = 32;
constexpr std::uint32_t kFewestUses = 64;  // in an epoch: learning costs as much as hundreds of them
constexpr std::uint32_t kMostUses = 15;    // four bits
constexpr std::uint32_t kRemembered = 3;   // ids for each object held
constexpr std::uint64_t kFreshPart = 4;    // of the capacity, for fresh objects
constexpr std::uint32_t kJudgedPart = 32;  // of the fresh ones, while an epoch's bytes go

std::uint32_t one_more(std::uint32_t uses) { return std::min(uses + 1, kMostUses); }

// A number of bytes in one byte, rounded down by less than a fifth: a power of two of units, and the two bits below it.
constexpr std::uint32_t kUnitBits = 6;

std::uint8_t size_code(std::uint64_t bytes) {
  const std::uint64_t units = std::max<std::uint64_t>(bytes >> kUnitBits, 1) << 2;
  const auto power = static_cast<std::uint32_t>(std::bit_width(units)) - 3;
  return static_cast<std::uint8_t>(power << 2 | (units >> power & 3));
}

std::uint64_t bytes_of(std::uint8_t code) { return (std::uint64_t{4} | (code & 3)) << (code >> 2) << kUnitBits >> 2; }

}  // namespace

PrefixPolicy::PrefixPolicy(std::uint64_t capacity_bytes, ObjectsView objects)
    : epoch_bytes_(std::max<std::uint64_t>(capacity_bytes / kEpochsToFill, 1)),
      fresh_capacity_(capacity_bytes / kFreshPart),
      table_(std::move(objects)),
      gone_(kRemembered) {
  rank_lists();
}

void PrefixPolicy::insert(Slot slot, const ObjectFacts& facts) {
  leaves_.make_room_for(slot);
  const bool first = facts.parent.is_nil();
  ChainTable::Entry& entry = objects_.insert(slot, first ? std::nullopt : table_.find(facts.parent));
  gone_.make_room_for(objects_.size());
  const std::uint32_t tag = tag_of(facts.id);
  entry.uses = one_more(gone_.take(tag).value_or(0)) & kMostUses;
  model_.use(tag, entry.uses, epoch_);
  if (entry.parent != kNoSlot) child_came(entry.parent);
  entry.alone = entry.fresh = first ? 1 : 0;
  entry.size_code = size_code(facts.bytes);
  if (entry.fresh) fresh_bytes_ += bytes_of(entry.size_code);
  add_leaf(slot, epoch_);
  while (fresh_bytes_ > fresh_capacity_ && leaves_.back(kFresh) != leaves_.front(kFresh)) judge(leaves_.back(kFresh));
  mean_bytes_ = mean_bytes_ == 0 ? facts.bytes : mean_bytes_ - mean_bytes_ / 64 + facts.bytes / 64;
  spend(facts.bytes);
}

void PrefixPolicy::access(Slot slot) {
  ChainTable::Entry& entry = objects_[slot];
  entry.uses = one_more(entry.uses) & kMostUses;
  model_.use(tag_of(table_.id(slot)), entry.uses, epoch_);
  if (entry.fresh) {
    entry.parent = epoch_;
  } else if (entry.leaf) {
    remove_leaf(slot);
    add_leaf(slot, epoch_);
  } else {
    leaves_.other_note(slot) = epoch_;
  }
  spend(mean_bytes_);
}

void PrefixPolicy::erase(Slot slot) {
  const ChainTable::Entry& entry = objects_[slot];
  const std::optional<Slot> parent = objects_.parent_of(slot);
  if (entry.leaf) remove_leaf(slot);
  gone_.put(tag_of(table_.id(slot)), entry.uses);
  gone_bytes_ += bytes_of(entry.size_code);
  if (gone_bytes_ >= epoch_bytes_) judge_some();
  objects_.erase(slot);
  if (parent) child_went(*parent);
}

Slot PrefixPolicy::victim(const MayTake& may_take) {
  int looks = 0;
  for (; first_ < kLists; ++first_, came_round_ = kNoSlot) {
    for (Slot slot; (slot = leaves_.back(order_[first_])) != kNoSlot && slot != came_round_; ++looks) {
      if (looks == kMaxLooks) return kNoSlot;
      if (may_take(slot)) return slot;
      if (came_round_ == kNoSlot) came_round_ = slot;
      leaves_.unlink(slot);  // it is in use
      ChainTable::Entry& entry = objects_[slot];
      if (entry.fresh) entry.parent = epoch_;
      leaves_.push_front(list_of(entry, epoch_), slot);
    }
  }
  first_ = 0;
  return kNoSlot;
}

void PrefixPolicy::remove_leaf(Slot slot) {
  ChainTable::Entry& entry = objects_[slot];
  if (entry.fresh) {
    fresh_bytes_ -= bytes_of(entry.size_code);
    entry.parent = kNoSlot;
  }
  entry.fresh = 0;
  leaves_.unlink(slot);
  if (slot == came_round_) came_round_ = kNoSlot;
}

void PrefixPolicy::judge(Slot slot) {
  const ReuseModel::Epoch last_use = objects_[slot].parent;
  remove_leaf(slot);
  add_leaf(slot, last_use);
}

std::uint32_t PrefixPolicy::list_of(const ChainTable::Entry& entry, ReuseModel::Epoch last_use) const {
  if (entry.fresh) return kFresh;
  return ReuseModel::class_of(entry.uses) * kAges + ReuseModel::age_of(epoch_ - last_use);
}

void PrefixPolicy::add_leaf(Slot slot, ReuseModel::Epoch last_use) {
  ChainTable::Entry& entry = objects_[slot];
  if (entry.fresh) entry.parent = last_use;
  const std::uint32_t list = list_of(entry, last_use);
  // Those that stand alone go in the order in which they came, of chains the one that was put last goes first.
  if (entry.alone) {
    leaves_.push_front(list, slot);
  } else {
    leaves_.push_back(list, slot);
  }
  if (rank_[list] > first_ || (rank_[list] == first_ && !entry.alone)) return;
  first_ = rank_[list];
  came_round_ = kNoSlot;
}

// In the time in which all of the memory goes to others, about two thirds of what was fresh are judged, and so on: what
// stands alone and is put seldom does not keep its part for ever.
void PrefixPolicy::judge_some() {
  gone_bytes_ = 0;
  owed_bytes_ += fresh_bytes_ / kJudgedPart;
  for (Slot oldest; (oldest = leaves_.back(kFresh)) != kNoSlot;) {
    const std::uint64_t bytes = bytes_of(objects_[oldest].size_code);
    if (bytes > owed_bytes_) return;
    owed_bytes_ -= bytes;
    judge(oldest);
  }
  owed_bytes_ = 0;
}

// Who goes on with a chain has used it just now.
void PrefixPolicy::child_came(Slot parent) {
  ChainTable::Entry& entry = objects_[parent];
  if (entry.leaf) {
    remove_leaf(parent);
    leaves_.note(parent) = 0;
    entry.leaf = 0;
    entry.alone = 0;
  }
  ++leaves_.note(parent);
  leaves_.other_note(parent) = epoch_;
}

void PrefixPolicy::child_went(Slot parent) {
  if (--leaves_.note(parent) > 0) return;
  objects_[parent].leaf = 1;
  add_leaf(parent, leaves_.other_note(parent));
}

void PrefixPolicy::spend(std::uint64_t bytes) {
  spent_bytes_ += bytes;
  ++spent_uses_;
  if (spent_bytes_ >= epoch_bytes_ && spent_uses_ >= kFewestUses) begin_epoch();
}

void PrefixPolicy::begin_epoch() {
  spent_bytes_ = 0;
  spent_uses_ = 0;
  ++epoch_;
  for (std::uint32_t age = kAges - 1; age-- > 0;) {
    const std::uint32_t span = ReuseModel::first_epoch_of(age + 1) - ReuseModel::first_epoch_of(age);
    if (epoch_ % span != 0) continue;
    for (std::uint32_t c = 0; c < ReuseModel::kClasses; ++c) {
      leaves_.append(c * kAges + age, c * kAges + age + 1);
    }
  }
  model_.learn(epoch_);
  rank_lists();
}

void PrefixPolicy::rank_lists() {
  std::iota(order_.begin(), order_.end(), std::uint16_t{0});
  const ReuseModel::Table& worth = model_.worth();
  const auto level = [](std::uint32_t list) { return list == kFresh ? 2 : list % kAges == 0 ? 1 : 0; };
  std::stable_sort(order_.begin(), order_.end(), [&](std::uint16_t left, std::uint16_t right) {
    if (level(left) != level(right) || left == kFresh) return level(left) < level(right);
    const float a = worth[left / kAges][left % kAges];
    const float b = worth[right / kAges][right % kAges];
    return a != b ? a < b : left % kAges > right % kAges;
  });
  for (std::uint32_t place = 0; place < kLists; ++place) rank_[order_[place]] = static_cast<std::uint16_t>(place);
  first_ = 0;
  came_round_ = kNoSlot;
}

std::uint64_t PrefixPolicy::memory_bytes() const {
  return sizeof(*this) + objects_.memory_bytes() + leaves_.memory_bytes() + gone_.memory_bytes() +
         model_.memory_bytes();
}

}  // namespace kvferry::store
