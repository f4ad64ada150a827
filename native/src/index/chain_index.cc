#include "kvferry/chain_index.h"

#include <algorithm>
#include <array>
#include <bit>
#include <mutex>
#include <shared_mutex>

#include "index/block_table.h"
#include "index/fair_shared_mutex.h"
#include "index/holder_sets.h"

namespace kvferry::index {
namespace {

constexpr std::uint32_t kMaxInstances = 1024;
constexpr std::size_t kStep = 512;  // blocks changed between two chances for readers
constexpr std::size_t kAhead = 32;  // places prefetched before they are looked at
constexpr std::size_t kMaxWords = kMaxInstances / 64;

using Mask = std::array<std::uint64_t, kMaxWords>;

// Looks a chain's blocks up, one after the other: where the next one would lie if they came together, and if it is not
// there, by its key. When several in a row are not, these are fetched into the cache well before their turn.
class Walk {
 public:
  Walk(const BlockTable& table, std::span<const BlockKey> keys) : table_(table), keys_(keys) {}
  // Block i, which must be the one after the last call's; null if nobody holds it.
  const HolderSets::Id* find(std::size_t i) {
    const HolderSets::Id* const next = table_.at(++position_, keys_[i]);
    return next != nullptr ? next : find_far(i);
  }

 private:
  [[gnu::noinline]] const HolderSets::Id* find_far(std::size_t i) {
    if (i >= guessed_) placed_ = guessed_ = i;
    fetch(i, i < scattered_ ? kAhead : 1);
    scattered_ = i + kAhead;
    position_ = guesses_[i % kAhead];
    const HolderSets::Id* found = table_.at(position_, keys_[i]);
    if (found == nullptr && position_ != BlockTable::kNone) {  // another key of the same hash
      position_ = table_.locate(table_.place(keys_[i]));
      found = table_.at(position_, keys_[i]);
    }
    return found;
  }
  // The blocks from i on are fetched, and for as many after them the lines that tell where these are.
  void fetch(std::size_t i, std::size_t count) {
    for (const std::size_t end = std::min(i + 2 * count, keys_.size()); placed_ < end; ++placed_) {
      places_[placed_ % places_.size()] = table_.place(keys_[placed_]);
      table_.prefetch(places_[placed_ % places_.size()]);
    }
    for (const std::size_t end = std::min(i + count, keys_.size()); guessed_ < end; ++guessed_) {
      const BlockTable::Position guess = table_.guess(places_[guessed_ % places_.size()]);
      guesses_[guessed_ % kAhead] = guess;
      if (guess != BlockTable::kNone) table_.prefetch(guess);
    }
  }

  const BlockTable& table_;
  std::span<const BlockKey> keys_;
  BlockTable::Position position_ = BlockTable::kNone - 1;  // of the last block; some other number before the first one
  std::size_t scattered_ = 0;             // a block before that one is looked up together with those after it
  std::size_t placed_ = 0, guessed_ = 0;  // up to there it is known where to look, and what is found there
  std::array<BlockTable::Place, 2 * kAhead> places_{};
  std::array<BlockTable::Position, kAhead> guesses_{};
};

// The first index in [from, end) for which `differs` holds, if it holds for all after it; `end` if there is none. Looks
// at places 1, 2, 4, ... on first, then bisects.
template <typename Differs>
std::size_t gallop(std::size_t from, std::size_t end, Differs&& differs) {
  std::size_t low = from;
  std::size_t high = end;
  for (std::size_t step = 1; low < end; step *= 2) {
    const std::size_t probe = std::min(low + step - 1, end - 1);
    if (differs(probe)) {
      high = probe;
      break;
    }
    low = probe + 1;
  }
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (differs(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace

class ChainIndex::Impl {
 public:
  explicit Impl(const IndexOptions& options)
      : instances_(std::clamp<std::uint32_t>(options.max_instances, 1, kMaxInstances)),
        words_((instances_ + 63) / 64),
        count_repeats_(options.count_repeats),
        max_blocks_(options.max_blocks == 0 ? SIZE_MAX : options.max_blocks),
        sets_(words_),
        repeats_(instances_),
        held_(instances_) {}

  std::uint32_t instances() const { return instances_; }

  Status check(InstanceId instance) const {
    if (instance < instances_) return {};
    return {Code::kInvalidArgument,
            "instance " + std::to_string(instance) + " of an index for " + std::to_string(instances_)};
  }

  Stored store(InstanceId instance, const BlockKey* parent, std::span<const BlockKey> keys);
  std::size_t remove(InstanceId instance, std::span<const BlockKey> keys);
  std::size_t clear(InstanceId instance);
  std::size_t match_any(std::span<const BlockKey> keys, Search search) const;
  std::size_t match_each(std::span<const BlockKey> keys, std::span<std::uint32_t> lengths, Search search) const;
  void references(InstanceId instance, std::span<const BlockKey> keys, std::span<std::uint32_t> out) const;
  std::vector<InstanceId> holders(const BlockKey& key) const;
  Stats stats() const;

 private:
  // The holders of a block; kEmpty if nobody holds it.
  HolderSets::Id set_of(const BlockKey& key) const { return value(blocks_.find(blocks_.place(key))); }
  static HolderSets::Id value(const HolderSets::Id* found) { return found == nullptr ? HolderSets::kEmpty : *found; }

  // Calls change(place, key) for each key, in steps, the lock held; `first` once before, under the first step's lock.
  template <typename First, typename Change>
  void in_steps(std::span<const BlockKey> keys, First&& first, Change&& change);
  void store_one(InstanceId instance, const BlockTable::Place& place, const BlockKey& key, Stored& result);
  bool remove_one(InstanceId instance, const BlockTable::Place& place, const BlockKey& key);
  void add_repeat(InstanceId instance, const BlockKey& key);
  bool drop_repeat(InstanceId instance, const BlockKey& key);
  void each_linear(std::span<const BlockKey> keys, Mask& active, std::span<std::uint32_t> lengths) const;
  void each_gallop(std::span<const BlockKey> keys, Mask& active, std::span<std::uint32_t> lengths) const;
  bool keep(Mask& active, HolderSets::Id set, std::size_t length, std::span<std::uint32_t> lengths) const;
  bool covers(HolderSets::Id set, const Mask& active) const;

  const std::uint32_t instances_;
  const std::size_t words_;
  const bool count_repeats_;
  const std::size_t max_blocks_;
  mutable FairSharedMutex mutex_;  // guards all below
  BlockTable blocks_;              // key -> who holds it
  HolderSets sets_;
  std::vector<std::unique_ptr<BlockTable>> repeats_;  // by instance: key -> references beyond the first
  std::vector<std::size_t> held_;                     // by instance: blocks
};

template <typename First, typename Change>
void ChainIndex::Impl::in_steps(std::span<const BlockKey> keys, First&& first, Change&& change) {
  std::size_t begin = 0;
  do {
    const std::span<const BlockKey> step = keys.subspan(begin, std::min(kStep, keys.size() - begin));
    const std::unique_lock lock(mutex_);
    if (begin == 0) first();
    for (std::size_t i = 0; i < std::min(kAhead, step.size()); ++i) blocks_.prefetch(blocks_.place(step[i]));
    for (std::size_t i = 0; i < step.size(); ++i) {
      if (i + kAhead < step.size()) blocks_.prefetch(blocks_.place(step[i + kAhead]));
      change(blocks_.place(step[i]), step[i]);
    }
    begin += step.size();
  } while (begin < keys.size());
}

void ChainIndex::Impl::store_one(InstanceId instance, const BlockTable::Place& place, const BlockKey& key,
                                 Stored& result) {
  HolderSets::Id* const set = blocks_.find(place);
  if (set == nullptr) {
    if (blocks_.size() >= max_blocks_) {
      ++result.refused;
      return;
    }
    blocks_.insert(place, sets_.toggled(HolderSets::kEmpty, instance));
  } else if (!sets_.contains(*set, instance)) {
    *set = sets_.toggled(*set, instance);
  } else {
    ++result.repeated;
    if (count_repeats_) add_repeat(instance, key);
    return;
  }
  ++held_[instance];
  ++result.added;
}

ChainIndex::Stored ChainIndex::Impl::store(InstanceId instance, const BlockKey* parent,
                                           std::span<const BlockKey> keys) {
  Stored result;
  in_steps(
      keys, [&] { result.parent_held = parent == nullptr || sets_.contains(set_of(*parent), instance); },
      [&](const BlockTable::Place& place, const BlockKey& key) { store_one(instance, place, key, result); });
  return result;
}

void ChainIndex::Impl::add_repeat(InstanceId instance, const BlockKey& key) {
  std::unique_ptr<BlockTable>& table = repeats_[instance];
  if (table == nullptr) table = std::make_unique<BlockTable>();
  const BlockTable::Place place = table->place(key);
  std::uint32_t* const count = table->find(place);
  if (count == nullptr) {
    table->insert(place, 1);
  } else if (*count < UINT32_MAX - 1) {
    ++*count;
  }
}

bool ChainIndex::Impl::drop_repeat(InstanceId instance, const BlockKey& key) {
  BlockTable* const table = repeats_[instance].get();
  if (table == nullptr) return false;
  const BlockTable::Place place = table->place(key);
  std::uint32_t* const count = table->find(place);
  if (count == nullptr) return false;
  if (--*count == 0) table->erase(place);
  return true;
}

bool ChainIndex::Impl::remove_one(InstanceId instance, const BlockTable::Place& place, const BlockKey& key) {
  HolderSets::Id* const set = blocks_.find(place);
  if (set == nullptr || !sets_.contains(*set, instance)) return false;
  if (drop_repeat(instance, key)) return true;
  *set = sets_.toggled(*set, instance);
  if (*set == HolderSets::kEmpty) blocks_.erase(place);
  --held_[instance];
  return true;
}

std::size_t ChainIndex::Impl::remove(InstanceId instance, std::span<const BlockKey> keys) {
  std::size_t removed = 0;
  in_steps(
      keys, [] {},
      [&](const BlockTable::Place& place, const BlockKey& key) {
        if (remove_one(instance, place, key)) ++removed;
      });
  return removed;
}

std::size_t ChainIndex::Impl::clear(InstanceId instance) {
  std::size_t cleared = 0;
  for (std::size_t chunk = SIZE_MAX; chunk > 0;) {  // down, as the table wants it
    const std::unique_lock lock(mutex_);
    if (chunk == SIZE_MAX) repeats_[instance].reset();
    chunk = std::min(chunk, blocks_.chunks());
    if (chunk == 0) break;
    blocks_.filter(--chunk, [&](HolderSets::Id& set) {
      if (!sets_.contains(set, instance)) return true;
      set = sets_.toggled(set, instance);
      --held_[instance];
      ++cleared;
      return set != HolderSets::kEmpty;
    });
  }
  return cleared;
}

std::size_t ChainIndex::Impl::match_any(std::span<const BlockKey> keys, Search search) const {
  const std::shared_lock lock(mutex_);
  if (search == Search::kGallop) {
    return gallop(0, keys.size(), [&](std::size_t i) { return set_of(keys[i]) == HolderSets::kEmpty; });
  }
  Walk walk(blocks_, keys);
  std::size_t length = 0;
  while (length < keys.size() && walk.find(length) != nullptr) ++length;
  return length;
}

// Takes out of `active` who is not in the set: their prefix has `length` blocks. False when nobody is left.
bool ChainIndex::Impl::keep(Mask& active, HolderSets::Id set, std::size_t length,
                            std::span<std::uint32_t> lengths) const {
  const std::span<const std::uint64_t> mask = sets_.mask(set);
  std::uint64_t left = 0;
  for (std::size_t w = 0; w < words_; ++w) {
    for (std::uint64_t gone = active[w] & ~mask[w]; gone != 0; gone &= gone - 1) {
      lengths[64 * w + static_cast<std::size_t>(std::countr_zero(gone))] = static_cast<std::uint32_t>(length);
    }
    active[w] &= mask[w];
    left |= active[w];
  }
  return left != 0;
}

bool ChainIndex::Impl::covers(HolderSets::Id set, const Mask& active) const {
  const std::span<const std::uint64_t> mask = sets_.mask(set);
  for (std::size_t w = 0; w < words_; ++w) {
    if ((active[w] & ~mask[w]) != 0) return false;
  }
  return true;
}

void ChainIndex::Impl::each_linear(std::span<const BlockKey> keys, Mask& active,
                                   std::span<std::uint32_t> lengths) const {
  Walk walk(blocks_, keys);
  HolderSets::Id before = HolderSets::kEmpty;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const HolderSets::Id set = value(walk.find(i));
    if (set == before && i > 0) continue;
    if (!keep(active, set, i, lengths)) return;
    before = set;
  }
}

void ChainIndex::Impl::each_gallop(std::span<const BlockKey> keys, Mask& active,
                                   std::span<std::uint32_t> lengths) const {
  for (std::size_t i = 0; i < keys.size();) {
    if (!keep(active, set_of(keys[i]), i, lengths)) return;
    i = gallop(i + 1, keys.size(), [&](std::size_t at) { return !covers(set_of(keys[at]), active); });
  }
}

std::size_t ChainIndex::Impl::match_each(std::span<const BlockKey> keys, std::span<std::uint32_t> lengths,
                                         Search search) const {
  std::ranges::fill(lengths, 0);
  Mask active{};
  for (InstanceId instance = 0; instance < instances_; ++instance) {
    active[instance / 64] |= std::uint64_t{1} << (instance % 64);
  }
  const std::shared_lock lock(mutex_);
  if (search == Search::kGallop) {
    each_gallop(keys, active, lengths);
  } else {
    each_linear(keys, active, lengths);
  }
  keep(active, HolderSets::kEmpty, keys.size(), lengths);  // whoever is left holds them all
  return *std::ranges::max_element(lengths);
}

void ChainIndex::Impl::references(InstanceId instance, std::span<const BlockKey> keys,
                                  std::span<std::uint32_t> out) const {
  const std::shared_lock lock(mutex_);
  const BlockTable* const repeats = repeats_[instance].get();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    out[i] = sets_.contains(set_of(keys[i]), instance) ? 1 : 0;
    if (out[i] > 0 && repeats != nullptr) out[i] += value(repeats->find(repeats->place(keys[i])));
  }
}

std::vector<InstanceId> ChainIndex::Impl::holders(const BlockKey& key) const {
  std::vector<InstanceId> found;
  const std::shared_lock lock(mutex_);
  const HolderSets::Id set = set_of(key);
  for (InstanceId instance = 0; instance < instances_; ++instance) {
    if (sets_.contains(set, instance)) found.push_back(instance);
  }
  return found;
}

ChainIndex::Stats ChainIndex::Impl::stats() const {
  const std::shared_lock lock(mutex_);
  Stats stats{blocks_.size(), sizeof(*this) + blocks_.memory_bytes() + sets_.memory_bytes(), 0, held_};
  stats.memory_bytes += held_.capacity() * sizeof(held_[0]) + repeats_.capacity() * sizeof(repeats_[0]);
  for (const std::unique_ptr<BlockTable>& table : repeats_) {
    if (table == nullptr) continue;
    stats.memory_bytes += table->memory_bytes();
    stats.repeats += table->size();
  }
  return stats;
}

ChainIndex::ChainIndex(const IndexOptions& options) : impl_(std::make_unique<Impl>(options)) {}
ChainIndex::~ChainIndex() = default;

Result<ChainIndex::Stored> ChainIndex::stored(InstanceId instance, const BlockKey* parent,
                                              std::span<const BlockKey> keys) {
  KVF_RETURN_IF_ERROR(impl_->check(instance));
  return impl_->store(instance, parent, keys);
}

Result<std::size_t> ChainIndex::removed(InstanceId instance, std::span<const BlockKey> keys) {
  KVF_RETURN_IF_ERROR(impl_->check(instance));
  return impl_->remove(instance, keys);
}

Result<std::size_t> ChainIndex::cleared(InstanceId instance) {
  KVF_RETURN_IF_ERROR(impl_->check(instance));
  return impl_->clear(instance);
}

std::size_t ChainIndex::match_prefix(std::span<const BlockKey> keys, Search search) const {
  return impl_->match_any(keys, search);
}

std::size_t ChainIndex::match(std::span<const BlockKey> keys, std::span<std::uint32_t> lengths, Search search) const {
  return impl_->match_each(keys, lengths, search);
}

Status ChainIndex::references(InstanceId instance, std::span<const BlockKey> keys, std::span<std::uint32_t> out) const {
  KVF_RETURN_IF_ERROR(impl_->check(instance));
  if (out.size() != keys.size()) return {Code::kInvalidArgument, "references: as many places as keys are needed"};
  impl_->references(instance, keys, out);
  return {};
}

std::vector<InstanceId> ChainIndex::holders(const BlockKey& key) const { return impl_->holders(key); }
ChainIndex::Stats ChainIndex::stats() const { return impl_->stats(); }
std::uint32_t ChainIndex::max_instances() const { return impl_->instances(); }

}  // namespace kvferry::index
