// Room for a put: what is free, else what expired, else what the policy gives up. Under the store's lock.
#include <algorithm>
#include <string>
#include <utility>

#include "base/deadline.h"
#include "store/local_store_impl.h"

namespace kvferry::store {
namespace {

constexpr std::size_t kMostVictims = 64;  // at once: their pins are looked at together

}  // namespace

// Memory that is free now. A put leaves alone what loads wait for: there are few of them, and they wait for a disk
// already.
std::optional<std::vector<Place>> LocalStoreImpl::take_room(std::uint64_t bytes, Purpose purpose) {
  if (purpose == Purpose::kPut && memory_.arenas().free_bytes() < ArenaSet::rounded(bytes) + loads_want_) return {};
  auto places = memory_.allocate(bytes);
  if (!places || table_->has_list_for(places->size())) return places;
  memory_.give_back(*places, bytes);
  return std::nullopt;
}

Status LocalStoreImpl::check_size(std::uint64_t bytes) const {
  const std::uint64_t capacity = memory_.arenas().capacity();
  if (bytes <= kMaxObjectBytes && ArenaSet::rounded(bytes) <= capacity) return {};
  return {Code::kOutOfRange, "an object of " + std::to_string(bytes) + " bytes is larger than all memory of the " +
                                 "node, " + std::to_string(capacity) +
                                 " bytes; give the node more (store.dram), or put the value in parts"};
}

// Where objects leave memory for elsewhere, that is waited for: who puts is slowed down to the pace of the disk.
// Objects are dropped only where there is nowhere else for them.
Result<std::vector<Place>> LocalStoreImpl::make_room(Lock& lock, std::uint64_t bytes, Deadline deadline,
                                                     Purpose purpose) {
  KVF_RETURN_IF_ERROR(check_size(bytes));
  const std::uint64_t rounded = ArenaSet::rounded(bytes);
  for (;;) {
    if (auto places = take_room(bytes, purpose)) return *std::move(places);
    if (free_offers(quick_.take_back()) || memory_.reclaim() > 0 || forget_expired()) continue;
    drain_accesses();
    memory_.look_at_pins();
    if (!could_fit(bytes)) break;  // it would cost all that is here and not help
    // Enough although it is free, but not in one place: then as much again.
    const std::uint64_t free = memory_.arenas().free_bytes();
    const std::uint64_t missing = rounded > free ? rounded - free : bytes;
    if (tiers() && more_may_leave()) {
      const Waited waited = wait_for_tiering(lock, missing, deadline, purpose == Purpose::kLoad ? rounded : 0);
      if (closed_) return {Code::kUnavailable, "the node's store is closed"};
      if (waited == Waited::kLate) return no_room_yet(bytes);
      if (waited == Waited::kChanged) continue;
    }
    const std::uint64_t evicted = evict(missing, kMostVictims);
    counters_.add(StoreCounters::kEvictedInPut, evicted);
    if (evicted == 0) break;
  }
  counters_.add(StoreCounters::kPutsRefused);
  return no_room(bytes);
}

Result<Slot> LocalStoreImpl::make_slot(Lock& lock, Deadline deadline) {
  const auto only_on_ssd = [this](Slot slot) {
    return table_->entry(slot).held.tier == Tier::kSsd && loading_.count(table_->id(slot)) == 0;
  };
  for (;;) {
    if (const auto slot = table_->take_slot()) return *slot;
    if (free_offers(quick_.take_back()) || forget_expired()) continue;
    drain_accesses();
    memory_.look_at_pins();
    const Slot on_ssd = table_->ssd_objects() > 0 ? table_->ssd_victim(only_on_ssd) : kNoSlot;
    const Slot slot = on_ssd != kNoSlot ? on_ssd : next_victim();
    if (slot == kNoSlot && wait_for_log(lock, deadline)) continue;
    if (slot == kNoSlot) break;
    counters_.add(on_ssd != kNoSlot ? StoreCounters::kSsdEvicted : StoreCounters::kEvicted);
    counters_.add(StoreCounters::kEvictedInPut);
    retire({give_up(slot)});
    call_for_upkeep(!dropped_.empty());
  }
  return no_slot(deadline);
}

// Why there is none. What will be free when the disk is done may be asked for again.
Status LocalStoreImpl::no_slot(Deadline deadline) {
  if (closed_) return {Code::kUnavailable, "the node's store is closed"};
  const std::string holds = "the node holds " + std::to_string(table_->objects()) + " objects and has " +
                            std::to_string(puts_.size()) + " puts under way, as many as it may (max_objects); ";
  if (expired(deadline) && !appending_.empty() && !nothing_moves()) {
    return {Code::kDeadlineExceeded, holds + "some are still on their way to the SSD"};
  }
  counters_.add(StoreCounters::kPutsRefused);
  return {Code::kResourceExhausted, holds + "all are in use: try again"};
}

// Memory of objects that are in use. What is being written to SSD is held by the node itself, and will be free soon.
std::uint64_t LocalStoreImpl::pinned_bytes() const {
  std::uint64_t pinned = 0;
  for (const std::uint64_t word : memory_.seen_pins()) {
    if (!table_->holds(word)) continue;
    const Held held = table_->entry(static_cast<Slot>((word >> 32) - 1)).held;
    if (held.tier == Tier::kDram) pinned += ArenaSet::rounded(held.bytes);
  }
  return pinned;
}

// Whether the bytes would be there if all went that is not in use; where that takes time, also what is being put or
// loaded, which can go next.
bool LocalStoreImpl::could_fit(std::uint64_t bytes) const {
  const std::uint64_t soon = tiers() ? puts_.reserved_bytes() + loading_bytes_ + slotless_bytes_ : 0;
  return ArenaSet::rounded(bytes) <= memory_.arenas().free_bytes() + table_->dram_bytes() - pinned_bytes() + soon;
}

// Else waiting helps only if readers end, which nobody can promise: there is enough memory free, in too many pieces.
bool LocalStoreImpl::more_may_leave() const {
  return table_->dram_bytes() > pinned_bytes() || puts_.reserved_bytes() > 0 || loading_bytes_ > 0 ||
         slotless_bytes_ > 0;
}

Slot LocalStoreImpl::next_victim() {
  return table_->victim([this](Slot slot) {
    // Of one id two records may not be on their way into the log at once.
    return !memory_.pinned(table_->pin_word_of(slot)) && appending_.count(table_->id(slot)) == 0;
  });
}

// What the SSD log has, too, stays there; the rest is given up.
Retired LocalStoreImpl::leave_memory(Slot slot) {
  const std::uint64_t bytes = ArenaSet::rounded(table_->entry(slot).held.bytes);
  if (table_->log_place(slot)) {
    counters_.add(StoreCounters::kDemoted);
    counters_.add(StoreCounters::kDemotedBytes, bytes);
    return table_->move_to_ssd(slot);
  }
  counters_.add(StoreCounters::kEvicted);
  counters_.add(StoreCounters::kEvictedBytes, bytes);
  if (ssd_ && !table_->records().extra(slot)) counters_.add(StoreCounters::kSsdSkipped);
  return give_up(slot);
}

// Frees memory by objects until they had so many bytes; at least one. By the pins as last looked at. The count of
// objects.
std::uint64_t LocalStoreImpl::evict(std::uint64_t bytes, std::size_t most_objects) {
  std::vector<Retired> batch;
  std::uint64_t freed = 0;
  while (batch.size() < most_objects && (batch.empty() || freed < bytes)) {
    const Slot slot = next_victim();
    if (slot == kNoSlot) break;
    batch.push_back(leave_memory(slot));
    freed += ArenaSet::rounded(batch.back().bytes);
  }
  const std::uint64_t objects = batch.size();
  retire(std::move(batch));
  call_for_upkeep(!dropped_.empty());
  return objects;
}

void LocalStoreImpl::retire(std::vector<Retired> batch) {
  counters_.add(StoreCounters::kKeptByPins, memory_.retire(std::move(batch)));
}

bool LocalStoreImpl::forget_expired() {
  const std::vector<Slot> due = table_->take_expired(monotonic_ms());
  std::vector<Retired> batch;
  for (const Slot slot : due) batch.push_back(give_up(slot));
  retire(std::move(batch));
  counters_.add(StoreCounters::kExpired, due.size());
  return !due.empty();
}

void LocalStoreImpl::drain_accesses() {
  memory_.pages().drain_accesses([this](std::uint32_t slot) { table_->maybe_accessed(slot); });
}

Status LocalStoreImpl::no_room(std::uint64_t bytes) const {
  return {Code::kResourceExhausted,
          "no room for " + std::to_string(bytes) + " bytes: of " + std::to_string(memory_.arenas().capacity()) +
              " bytes " + std::to_string(memory_.arenas().free_bytes()) + " are free, " +
              std::to_string(puts_.reserved_bytes()) + " reserved by puts that are under way, " +
              std::to_string(memory_.limbo_bytes()) +
              " still read although their object is gone, the rest pinned; try again when readers have finished"};
}

Status LocalStoreImpl::no_room_yet(std::uint64_t bytes) const {
  return {Code::kDeadlineExceeded, "no room for " + std::to_string(bytes) + " bytes yet: " +
                                       std::to_string(leaving_bytes_) + " bytes are on their way out of memory, at " +
                                       "the pace of the SSD or of the nodes that they go to; try again"};
}

void LocalStoreImpl::call_for_upkeep(bool needed) {
  if (!needed || upkeep_called_) return;
  upkeep_called_ = true;
  upkeep_wanted_.notify_one();
}

}  // namespace kvferry::store
