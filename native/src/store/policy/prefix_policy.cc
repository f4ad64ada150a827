#include "store/policy/prefix_policy.h"

#include <algorithm>
#include <numeric>

namespace kvferry::store {
namespace {

constexpr std::uint64_t kEpochsToFill = 32;
constexpr std::uint32_t kFewestUses = 64;  // in an epoch: learning costs as much as hundreds of them
constexpr std::uint8_t kMostUses = 15;
constexpr std::uint32_t kRemembered = 4;  // ids for each object held

}  // namespace

PrefixPolicy::PrefixPolicy(std::uint64_t capacity_bytes)
    : epoch_bytes_(std::max<std::uint64_t>(capacity_bytes / kEpochsToFill, 1)), gone_(kRemembered) {
  rank_lists();
}

void PrefixPolicy::insert(Slot slot, const ObjectFacts& facts) {
  leaves_.make_room_for(slot);
  ChainTable::Entry& entry = objects_.insert(slot, facts);
  gone_.make_room_for(objects_.size());
  entry.uses = static_cast<std::uint8_t>(std::min<int>(gone_.take(entry.tag).value_or(0) + 1, kMostUses));
  entry.epoch = static_cast<std::uint16_t>(epoch_);
  model_.use(entry.tag, entry.uses, epoch_);
  if (entry.parent != kNoSlot) child_came(entry.parent);
  add_leaf(slot);
  mean_bytes_ = mean_bytes_ == 0 ? facts.bytes : mean_bytes_ - mean_bytes_ / 64 + facts.bytes / 64;
  spend(facts.bytes);
}

void PrefixPolicy::access(Slot slot) {
  ChainTable::Entry& entry = objects_[slot];
  entry.uses = static_cast<std::uint8_t>(std::min<int>(entry.uses + 1, kMostUses));
  entry.epoch = static_cast<std::uint16_t>(epoch_);
  model_.use(entry.tag, entry.uses, epoch_);
  if (entry.leaf) {
    remove_leaf(slot);
    add_leaf(slot);
  }
  spend(mean_bytes_);
}

void PrefixPolicy::erase(Slot slot) {
  const ChainTable::Entry& entry = objects_[slot];
  if (entry.leaf) remove_leaf(slot);
  gone_.put(entry.tag, entry.uses);
  const Slot parent = objects_.parent_of(slot);
  objects_.erase(slot);
  if (parent != kNoSlot) child_went(parent);
}

Slot PrefixPolicy::victim(const MayTake& may_take) {
  int looks = 0;
  for (; first_ < kLists; ++first_, came_round_ = kNoSlot) {
    for (Slot slot; (slot = leaves_.back(order_[first_])) != kNoSlot && slot != came_round_; ++looks) {
      if (looks == kMaxLooks) return kNoSlot;
      if (may_take(slot)) return slot;
      if (came_round_ == kNoSlot) came_round_ = slot;
      leaves_.unlink(slot);  // it is in use
      objects_[slot].epoch = static_cast<std::uint16_t>(epoch_);
      leaves_.push_front(list_of(objects_[slot]), slot);
    }
  }
  first_ = 0;
  return kNoSlot;
}

void PrefixPolicy::remove_leaf(Slot slot) {
  leaves_.unlink(slot);
  if (slot == came_round_) came_round_ = kNoSlot;
}

std::uint32_t PrefixPolicy::list_of(const ChainTable::Entry& entry) const {
  const auto epochs = static_cast<std::uint16_t>(epoch_ - entry.epoch);
  return ReuseModel::class_of(entry.uses) * kAges + ReuseModel::age_of(epochs);
}

void PrefixPolicy::add_leaf(Slot slot) {
  const std::uint32_t list = list_of(objects_[slot]);
  leaves_.push_back(list, slot);
  if (rank_[list] >= first_) return;
  first_ = rank_[list];
  came_round_ = kNoSlot;
}

void PrefixPolicy::child_came(Slot parent) {
  ChainTable::Entry& entry = objects_[parent];
  if (entry.leaf) {
    remove_leaf(parent);
    leaves_.note(parent) = 0;
    entry.leaf = false;
  }
  ++leaves_.note(parent);
}

void PrefixPolicy::child_went(Slot parent) {
  if (--leaves_.note(parent) > 0) return;
  objects_[parent].leaf = true;
  add_leaf(parent);
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
  std::stable_sort(order_.begin(), order_.end(), [&](std::uint16_t left, std::uint16_t right) {
    const bool left_new = left % kAges == 0;
    const bool right_new = right % kAges == 0;
    if (left_new != right_new) return right_new;
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
