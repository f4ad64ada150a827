// From SSD into memory: what is found when the log is opened, what is asked for, and what will be soon.
#include <string>
#include <utility>

#include "base/deadline.h"
#include "store/local_store_impl.h"

namespace kvferry::store {
namespace {

constexpr std::size_t kMostPrefetches = 65536;
constexpr milliseconds kPrefetchTime{5000};

}  // namespace

// OK: look again. Two that ask for one object read it once.
Status LocalStoreImpl::bring_back(Lock& lock, const ObjectId& id, Slot slot, Deadline deadline) {
  if (loading_.insert(id).second) {
    const Status status = load(lock, id, slot, deadline);
    loading_.erase(id);
    loaded_.notify_all();
    return status;
  }
  if (loaded_.wait_until(lock, deadline, [&] { return closed_ || loading_.count(id) == 0; })) return {};
  return {Code::kDeadlineExceeded, "object " + id.to_string() + " is being read from SSD and was not there in time"};
}

Status LocalStoreImpl::load(Lock& lock, const ObjectId& id, Slot slot, Deadline deadline) {
  const std::uint64_t pin_word = table_->pin_word_of(slot);
  const std::uint64_t bytes = table_->entry(slot).held.bytes;
  KVF_ASSIGN_OR_RETURN(const std::vector<Place> places, make_room(lock, bytes, deadline, Purpose::kLoad));
  // Making room takes time: it may have gone.
  const auto at = table_->holds(pin_word) ? table_->log_place(slot) : std::nullopt;
  if (!at) {
    memory_.give_back(places, bytes);
    return {};
  }
  std::vector<std::span<std::byte>> targets;
  for (const Place& place : places) targets.push_back(arenas_[place.arena].subspan(place.offset, place.length));
  loading_bytes_ += ArenaSet::rounded(bytes);
  lock.unlock();
  const Status read = ssd_->read(id, *at, targets, deadline);
  lock.lock();
  loading_bytes_ -= ArenaSet::rounded(bytes);
  const bool there = table_->holds(pin_word);
  if (read.ok() && there) {
    table_->move_to_memory(slot, places);
    counters_.add(StoreCounters::kSsdHits);
    counters_.add(StoreCounters::kSsdHitBytes, bytes);
    return {};
  }
  memory_.give_back(places, bytes);
  const bool same_place = there && table_->log_place(slot) == at;
  if (read.code() == Code::kDataCorrupt) counters_.add(StoreCounters::kSsdCorrupt);
  if (same_place && (read.code() == Code::kDataCorrupt || read.code() == Code::kStale)) retire({give_up(slot)});
  // Gone, or moved within the log: the next look tells.
  return read.code() == Code::kStale ? Status() : read;
}

void LocalStoreImpl::prefetch(std::span<const ObjectId> ids) {
  if (!ssd_) return;
  const Lock lock(mutex_);
  for (const ObjectId& id : ids) {
    if (prefetches_.size() == kMostPrefetches) break;  // a hint
    prefetches_.push_back(id);
  }
  prefetch_wanted_.notify_one();
}

void LocalStoreImpl::prefetching() {
  Lock lock(mutex_);
  for (;;) {
    prefetch_wanted_.wait(lock, [this] { return closed_ || !prefetches_.empty(); });
    if (closed_) return;
    const ObjectId id = prefetches_.front();
    prefetches_.pop_front();
    const auto slot = find_current(id);
    if (!slot || table_->entry(*slot).held.tier == Tier::kDram) continue;
    // Who asks for the object itself will learn of what went wrong.
    (void)bring_back(lock, id, *slot, deadline_in(kPrefetchTime));
  }
}

// Before start() returns, by its thread.
bool LocalStoreImpl::recover(const SsdObject& found, const LogPlace& place) {
  const Lock lock(mutex_);
  if (table_->find(found.object.id)) return false;  // the log tells of the newest record only
  const auto slot = table_->take_slot();
  if (!slot) return false;
  const std::uint64_t expires_ms =
      found.expires_in ? monotonic_ms() + static_cast<std::uint64_t>(found.expires_in->count()) : kNeverExpires;
  table_->insert(*slot, found.object, {found.digest, Tier::kSsd, {}, expires_ms});
  table_->set_log_place(*slot, place);
  return true;
}

bool LocalStoreImpl::moved(const ObjectId& id, const LogPlace& from, const LogPlace& to) {
  const Lock lock(mutex_);
  const auto appending = appending_.find(id);
  const auto slot = table_->find(id);
  if (slot && table_->log_place(*slot) == from) {
    table_->set_log_place(*slot, to);
    return true;
  }
  if (appending == appending_.end()) return false;
  appending->second = to;
  return true;
}

}  // namespace kvferry::store
