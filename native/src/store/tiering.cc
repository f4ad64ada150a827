// Out of memory: to another node, to SSD, or nowhere if neither works. By some threads, which move bytes without the
// lock; what they move they hold meanwhile, so that nobody else frees it.
#include <algorithm>
#include <string>
#include <utility>

#include "base/deadline.h"
#include "store/local_store_impl.h"

namespace kvferry::store {
namespace {

constexpr milliseconds kRound{100};
constexpr milliseconds kLookAround{50};  // at pins, which nobody tells of
constexpr milliseconds kPressure{100};   // so long after a wait more room is made than was asked for
constexpr milliseconds kAskTime{3000};   // then nobody waits any more for another node to take an object
constexpr std::uint64_t kBatchBytes = 16u << 20, kLeastBatchBytes = 1u << 20;
constexpr milliseconds kShortBatch{250}, kLongBatch{1000};
constexpr std::size_t kBatchObjects = 256;
constexpr milliseconds kWriteTime{30000};  // for a batch; a disk that takes longer counts as failing
constexpr milliseconds kEraseTime{1000};
constexpr int kMostFullRounds = 3;  // then what the log has no room for is dropped
constexpr std::size_t kMostErases = 1024;

}  // namespace

void LocalStoreImpl::call_for_tiering() {
  if (tiering_called_) return;
  tiering_called_ = true;
  tiering_wanted_.notify_one();
}

void LocalStoreImpl::room_changed() {
  ++room_changes_;
  room_made_.notify_all();
}

bool LocalStoreImpl::nothing_moves() {
  const Clock::time_point asking = asking_since_;
  const bool asks_in_vain = asking < Clock::now() && Clock::now() - asking > kAskTime;
  return asks_in_vain || (ssd_ && ssd_->stuck());
}

// kChanged: look again.
LocalStoreImpl::Waited LocalStoreImpl::wait_for_tiering(Lock& lock, std::uint64_t missing, Deadline until,
                                                        std::uint64_t of_load) {
  if (nothing_moves()) return Waited::kStuck;
  const std::uint64_t changes = room_changes_;
  wanted_bytes_ = std::max(wanted_bytes_, missing);
  loads_want_ += of_load;
  pressed_until_ = deadline_in(kPressure);
  call_for_tiering();
  room_made_.wait_until(lock, sooner(until, deadline_in(kLookAround)),
                        [&] { return closed_ || room_changes_ != changes; });
  loads_want_ -= of_load;
  return room_changes_ == changes && expired(until) ? Waited::kLate : Waited::kChanged;
}

// What is on its way into the log can go when it is there. False: nothing is, or that takes too long.
bool LocalStoreImpl::wait_for_log(Lock& lock, Deadline until) {
  if (closed_ || appending_.empty() || nothing_moves() || expired(until)) return false;
  const std::uint64_t changes = room_changes_;
  room_made_.wait_until(lock, sooner(until, deadline_in(kLookAround)),
                        [&] { return closed_ || room_changes_ != changes; });
  return true;
}

void LocalStoreImpl::tiering() {
  Lock lock(mutex_);
  while (!closed_) {
    tiering_wanted_.wait_for(lock, kRound, [this] { return closed_ || tiering_called_; });
    tiering_called_ = false;
    erase_from_log(lock);
    while (!closed_ && move_some(lock)) continue;
  }
  const Deadline end = deadline_in(kWriteTime);
  while (!unwritten_.empty() && !expired(end) && write_through(lock) > 0) continue;
  erase_from_log(lock);
}

// False: there is nothing to do.
bool LocalStoreImpl::move_some(Lock& lock) {
  if (surplus() > 0 && let_go(lock) > 0) return true;
  return !unwritten_.empty() && write_through(lock) > 0;
}

// Small enough that what is held while it is written is never all there is, nor keeps those who wait for room waiting
// for long.
std::uint64_t LocalStoreImpl::batch_bytes() const {
  return std::min(most_batch_bytes_, memory_.arenas().capacity() / (4 * kMovers));
}

void LocalStoreImpl::adapt_batch(Clock::duration took) {
  if (took > kLongBatch) most_batch_bytes_ = std::max(most_batch_bytes_ / 2, kLeastBatchBytes);
  if (took < kShortBatch) most_batch_bytes_ = std::min(most_batch_bytes_ * 2, kBatchBytes);
}

// Bytes that should leave memory beyond those that are leaving. While somebody waits for room, or did just before, more
// than the watermarks ask for: the disk should have something to do while what came free is filled.
std::uint64_t LocalStoreImpl::surplus() {
  const std::uint64_t staying = used_bytes() - std::min(used_bytes(), leaving_bytes_);
  evicting_ = staying > (evicting_ ? low_water_ : high_water_);
  const bool ahead = Clock::now() < pressed_until_ && ssd_ && ssd_->usable();
  const std::uint64_t target = ahead ? low_water_ - std::min(low_water_, kMovers * batch_bytes()) : low_water_;
  const std::uint64_t above = (ahead || evicting_) && staying > target ? staying - target : 0;
  return std::max(above, wanted_bytes_ - std::min(wanted_bytes_, leaving_bytes_));
}

// One batch of objects out of memory. How many.
std::size_t LocalStoreImpl::let_go(Lock& lock) {
  if (ssd_) make_room_on_ssd(lock);
  drain_accesses();
  memory_.look_at_pins();
  const bool demote = options_.demote_to_remote && on_demote_;
  std::vector<Departure> batch;
  const std::size_t at_once = choose(demote, &batch);
  if (at_once > 0) room_changed();
  if (batch.empty()) return at_once;
  if (surplus() > 0) call_for_tiering();  // another thread goes on with these
  move_out(lock, batch, demote);
  settle(batch, /*leave=*/true);
  if (full_rounds_ >= kMostFullRounds) full_rounds_ = 0;  // the next round tries again
  room_changed();
  return at_once + batch.size();
}

// What is to be moved, into `batch`; what need not be has left. The count of these.
std::size_t LocalStoreImpl::choose(bool demote, std::vector<Departure>* batch) {
  const bool to_log = ssd_ && ssd_->usable() && full_rounds_ < kMostFullRounds;
  std::vector<Retired> retired;
  std::uint64_t size = 0;
  const std::uint64_t most = std::min(surplus(), batch_bytes());
  wanted_bytes_ = 0;
  while (batch->size() < kBatchObjects && size < most) {
    const Slot slot = next_victim();
    if (slot == kNoSlot) break;
    const bool extra = table_->records().extra(slot);
    const std::uint64_t bytes = ArenaSet::rounded(table_->entry(slot).held.bytes);
    size += bytes;
    if (extra || (!demote && (!to_log || table_->log_place(slot)))) {
      retired.push_back(leave_memory(slot));
      continue;
    }
    take_along(slot, to_log, batch);
    batch->back().leaving = bytes;
    leaving_bytes_ += bytes;
  }
  const std::size_t objects = retired.size();
  retire(std::move(retired));
  return objects;
}

// After a commit, in its order: objects that are in memory only. How many.
std::size_t LocalStoreImpl::write_through(Lock& lock) {
  if (!ssd_->usable()) unwritten_.clear();  // they are written when they are evicted
  make_room_on_ssd(lock);
  std::vector<Departure> batch;
  std::vector<ObjectId> later;
  std::uint64_t size = 0;
  while (!unwritten_.empty() && batch.size() < kBatchObjects && size < batch_bytes()) {
    const ObjectId id = unwritten_.front();
    unwritten_.pop_front();
    const auto slot = table_->find(id);
    if (!slot || table_->log_place(*slot) || table_->entry(*slot).held.tier != Tier::kDram) continue;
    if (appending_.count(id) != 0) {  // it, or what it took the place of
      later.push_back(id);
      continue;
    }
    take_along(*slot, /*to_log=*/true, &batch);
    size += ArenaSet::rounded(table_->entry(*slot).held.bytes);
  }
  unwritten_.insert(unwritten_.end(), later.begin(), later.end());
  if (batch.empty()) return 0;
  if (!unwritten_.empty()) call_for_tiering();
  move_out(lock, batch, /*demote=*/false);
  settle(batch, /*leave=*/false);
  room_changed();  // remove() waits for what is being appended
  return batch.size();
}

void LocalStoreImpl::take_along(Slot slot, bool to_log, std::vector<Departure>* batch) {
  Departure& departure = batch->emplace_back(departure_of(slot));
  departure.to_log = to_log && !table_->log_place(slot);
  memory_.hold(departure.pin_word);
  if (departure.to_log) appending_.emplace(departure.id, std::nullopt);
}

LocalStoreImpl::Departure LocalStoreImpl::departure_of(Slot slot) const {
  Departure departure;
  departure.slot = slot;
  departure.pin_word = table_->pin_word_of(slot);
  departure.id = table_->id(slot);
  SsdObject& object = departure.write.object;
  object.object = table_->describe(slot, monotonic_ms());
  object.digest = table_->entry(slot).held.digest;
  object.expires_in = object.object.expires_in;
  for (const Place& place : table_->places(slot)) {
    departure.write.pieces.push_back(arenas_[place.arena].subspan(place.offset, place.length));
  }
  return departure;
}

void LocalStoreImpl::move_out(Lock& lock, std::vector<Departure>& batch, bool demote) {
  const std::shared_ptr<const DemoteCallback> callback = on_demote_;
  lock.unlock();
  std::vector<SsdTier::Write> writes;
  std::vector<Departure*> writers;
  for (Departure& departure : batch) {
    if (demote && callback) {
      asking_since_ = Clock::now();
      departure.taken = (*callback)(departure.id);
      asking_since_ = Clock::time_point::max();
    }
    if (departure.taken || !departure.to_log) continue;
    writes.push_back(std::move(departure.write));
    writers.push_back(&departure);
  }
  const Clock::time_point start = Clock::now();
  if (!writes.empty()) {
    std::vector<Result<LogPlace>> places = ssd_->append(writes, deadline_in(kWriteTime));
    for (std::size_t i = 0; i < places.size(); ++i) writers[i]->place = std::move(places[i]);
  }
  lock.lock();
  if (!writes.empty()) adapt_batch(Clock::now() - start);
}

// What became of them while nobody looked.
void LocalStoreImpl::settle(std::vector<Departure>& batch, bool leave) {
  std::vector<Retired> retired;
  Status full;
  bool written = false;
  memory_.look_at_pins();
  for (Departure& departure : batch) {
    const Slot slot = departure.slot;
    memory_.drop(departure.pin_word);
    leaving_bytes_ -= departure.leaving;
    const bool there = table_->holds(departure.pin_word);
    const bool stored = note_place(departure);
    written |= stored;
    const bool no_room =
        departure.place && !departure.place->ok() && departure.place->status().code() == Code::kResourceExhausted;
    if (no_room) full = departure.place->status();
    if (!there || !leave || memory_.pinned(departure.pin_word)) continue;
    if (departure.taken) counters_.add(StoreCounters::kDemotedRemote);
    if (departure.taken) {
      retired.push_back(give_up(slot));
    } else if (!no_room || full_rounds_ + 1 >= kMostFullRounds) {
      retired.push_back(leave_memory(slot));
    }
  }
  full_rounds_ = written ? 0 : full_rounds_ + (full.ok() ? 0 : 1);
  if (full_rounds_ == kMostFullRounds) ssd_->note_full(full);
  retire(std::move(retired));
  call_for_upkeep(!dropped_.empty());
}

// True if the log has it. The place is noted with the object, or erased if the object has gone.
bool LocalStoreImpl::note_place(const Departure& departure) {
  const auto appending = appending_.find(departure.id);
  if (appending == appending_.end()) return false;
  const std::optional<LogPlace> moved_to = appending->second;
  appending_.erase(appending);
  if (!departure.place || !departure.place->ok()) return false;
  const LogPlace place = moved_to.value_or(**departure.place);
  counters_.add(StoreCounters::kSsdWritten);
  if (table_->holds(departure.pin_word)) {
    table_->set_log_place(departure.slot, place);
  } else {
    log_erases_.push_back({departure.id, place});
  }
  return true;
}

// Gives up objects in the log: by the policy while there is too much for it to compact, or all of its cheapest segment
// when it took nothing any more.
void LocalStoreImpl::make_room_on_ssd(Lock& lock) {
  const bool full = full_rounds_ > 0;
  const std::uint64_t ahead = kMovers * batch_bytes();
  lock.unlock();
  const std::uint64_t live = ssd_->usage().live_bytes + ahead, most = ssd_->most_live_bytes();
  const std::vector<LogErase> cheapest = full ? ssd_->cheapest_to_erase() : std::vector<LogErase>();
  lock.lock();
  std::vector<Retired> retired;
  const auto let = [&](Slot slot) {
    counters_.add(StoreCounters::kSsdEvicted);
    if (table_->entry(slot).held.tier == Tier::kSsd) {
      retired.push_back(give_up(slot));
    } else {
      log_erases_.push_back({table_->id(slot), *table_->log_place(slot)});
      table_->clear_log_place(slot);
    }
  };
  for (const LogErase& erase : cheapest) {
    const auto slot = table_->find(erase.id);
    if (slot && table_->log_place(*slot) == erase.place && loading_.count(erase.id) == 0) let(*slot);
  }
  std::uint64_t freed = 0;
  while (live > most + freed) {
    const Slot slot = table_->ssd_victim([this](Slot at) { return loading_.count(table_->id(at)) == 0; });
    if (slot == kNoSlot) break;
    freed += table_->entry(slot).held.bytes;
    let(slot);
  }
  retire(std::move(retired));
  erase_from_log(lock);
}

void LocalStoreImpl::await_write(const ObjectId& id) {
  // Most of them have left memory by another way when the disk does not keep up.
  if (unwritten_.size() > 2 * table_->dram_objects() + 4096) {
    std::erase_if(unwritten_, [this](const ObjectId& at) {
      const auto slot = table_->find(at);
      return !slot || table_->log_place(*slot);
    });
  }
  unwritten_.push_back(id);
  call_for_tiering();
}

// A removed object is not left to the background: a node that is killed after that must not come back with it.
void LocalStoreImpl::erase_now(Lock& lock, const ObjectId& id) {
  const Deadline end = deadline_in(kEraseTime);
  room_made_.wait_until(lock, end, [&] { return closed_ || appending_.count(id) == 0; });
  std::vector<LogErase> mine;
  std::erase_if(log_erases_, [&](const LogErase& erase) {
    if (erase.id == id) mine.push_back(erase);
    return erase.id == id;
  });
  if (mine.empty()) return;
  lock.unlock();
  const std::vector<LogErase> failed = ssd_->erase(std::move(mine), end);
  lock.lock();
  log_erases_.insert(log_erases_.end(), failed.begin(), failed.end());
}

void LocalStoreImpl::erase_from_log(Lock& lock) {
  while (ssd_ && !log_erases_.empty() && ssd_->usable()) {
    const std::size_t count = std::min(log_erases_.size(), kMostErases);
    std::vector<LogErase> batch(log_erases_.end() - static_cast<std::ptrdiff_t>(count), log_erases_.end());
    log_erases_.resize(log_erases_.size() - count);
    lock.unlock();
    const std::vector<LogErase> failed = ssd_->erase(std::move(batch), deadline_in(kWriteTime));
    lock.lock();
    log_erases_.insert(log_erases_.end(), failed.begin(), failed.end());
  }
}

}  // namespace kvferry::store
