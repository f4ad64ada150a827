#include "index/holder_sets.h"

#include <algorithm>

namespace kvferry::index {

HolderSets::HolderSets(std::size_t words)
    : words_(words), masks_(words), users_(1), known_(8, Hash{this}, Equal{this}) {}

std::size_t HolderSets::Hash::operator()(Id set) const {
  std::uint64_t hash = 0;
  for (const std::uint64_t word : sets->mask(set)) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return hash;
}

bool HolderSets::Equal::operator()(Id a, Id b) const { return std::ranges::equal(sets->mask(a), sets->mask(b)); }

HolderSets::Id HolderSets::toggled(Id set, std::uint32_t instance) {
  if (last_.to == kEmpty || last_.from != set || last_.instance != instance) {
    last_ = {set, instance, toggle_slowly(set, instance)};
  }
  const Id to = last_.to;
  if (to != kEmpty) ++users_[to];
  leave(set);
  return to;
}

HolderSets::Id HolderSets::toggle_slowly(Id set, std::uint32_t instance) {
  const Id made = fresh();
  std::copy_n(masks_.begin() + static_cast<std::ptrdiff_t>(set * words_), words_,
              masks_.begin() + static_cast<std::ptrdiff_t>(made * words_));
  masks_[made * words_ + instance / 64] ^= std::uint64_t{1} << (instance % 64);
  const bool is_empty = std::ranges::all_of(mask(made), [](std::uint64_t word) { return word == 0; });
  const Id same = is_empty ? kEmpty : *known_.insert(made).first;
  if (same != made) free_.push_back(made);
  return same;
}

HolderSets::Id HolderSets::fresh() {
  if (!free_.empty()) {
    const Id set = free_.back();
    free_.pop_back();
    return set;
  }
  masks_.resize(masks_.size() + words_);
  users_.push_back(0);
  return static_cast<Id>(users_.size() - 1);
}

void HolderSets::leave(Id set) {
  if (set == kEmpty || --users_[set] > 0) return;
  known_.erase(set);
  free_.push_back(set);
  last_ = {};  // it may name the set
}

std::size_t HolderSets::memory_bytes() const {
  constexpr std::size_t kNodeBytes = 32;  // what the C++ library allocates for one element
  return sizeof(*this) + masks_.capacity() * sizeof(masks_[0]) + users_.capacity() * sizeof(users_[0]) +
         free_.capacity() * sizeof(free_[0]) + known_.size() * kNodeBytes + known_.bucket_count() * sizeof(void*);
}

}  // namespace kvferry::index
