// Out of memory: to another node, to SSD, or nowhere if neither can keep up. One thread, which moves bytes without the
// lock; what it moves it holds meanwhile, so that nobody else frees it.
#include <algorithm>
#include <string>
#include <utility>

#include "base/deadline.h"
#include "store/local_store_impl.h"

namespace kvferry::store {
namespace {

constexpr milliseconds kRound{100};
constexpr std::uint64_t kBatchBytes = 16u << 20;
constexpr std::size_t kBatchObjects = 256;
constexpr milliseconds kWriteTime{5000};  // for a batch; a disk that takes longer counts as failing
constexpr milliseconds kEraseTime{1000};
constexpr int kMostFullRounds = 3;  // then what the log has no room for is dropped
constexpr std::size_t kMostErases = 1024;

}  // namespace

void LocalStoreImpl::call_for_tiering() {
  if (tiering_called_) return;
  tiering_called_ = true;
  tiering_wanted_.notify_one();
}

// True if something went out meanwhile. A batch that takes too long is not waited for by every put anew.
bool LocalStoreImpl::wait_for_tiering(Lock& lock, std::uint64_t bytes, Deadline until) {
  const std::uint64_t rounds = tiering_rounds_;
  wanted_bytes_ = std::max(wanted_bytes_, bytes);
  call_for_tiering();
  if (writing_since_) until = sooner(until, *writing_since_ + kPatience);
  return room_made_.wait_until(lock, until, [&] { return closed_ || tiering_rounds_ != rounds; }) && !closed_;
}

void LocalStoreImpl::tiering() {
  Lock lock(mutex_);
  while (!closed_) {
    tiering_wanted_.wait_for(lock, kRound, [this] { return closed_ || tiering_called_; });
    tiering_called_ = false;
    erase_from_log(lock);
    let_go_while_needed(lock);
    while (!closed_ && !unwritten_.empty() && write_through(lock) > 0) {
    }
  }
  const Deadline end = deadline_in(kWriteTime);
  while (!unwritten_.empty() && !expired(end) && write_through(lock) > 0) {
  }
  erase_from_log(lock);
}

void LocalStoreImpl::let_go_while_needed(Lock& lock) {
  bool evicting = above_high_water();
  while (!closed_ && (evicting || wanted_bytes_ > 0)) {
    const std::uint64_t surplus = evicting && used_bytes() > low_water_ ? used_bytes() - low_water_ : 0;
    const std::size_t objects = let_go(lock, std::max(std::exchange(wanted_bytes_, 0), surplus));
    evicting = evicting && objects > 0 && used_bytes() > low_water_;
  }
}

// One batch of objects out of memory. How many.
std::size_t LocalStoreImpl::let_go(Lock& lock, std::uint64_t bytes) {
  if (ssd_) make_room_on_ssd(lock);
  drain_accesses();
  memory_.look_at_pins();
  const bool demote = options_.demote_to_remote && on_demote_;
  const bool to_log = ssd_ && ssd_->usable() && full_rounds_ < kMostFullRounds;
  std::vector<Departure> batch;
  std::uint64_t size = 0;
  std::vector<Retired> retired;
  // Small enough that what is held while it is written is never all there is.
  const std::uint64_t most = std::min({bytes, kBatchBytes, memory_.arenas().capacity() / 4});
  while (batch.size() < kBatchObjects && size < most) {
    const Slot slot = next_victim();
    if (slot == kNoSlot) break;
    const bool extra = table_->records().extra(slot);
    size += ArenaSet::rounded(table_->entry(slot).held.bytes);
    if (extra || (!demote && (!to_log || table_->log_place(slot)))) {
      retired.push_back(leave_memory(slot));
      continue;
    }
    batch.push_back(departure_of(slot));
    batch.back().to_log = to_log && !table_->log_place(slot);
    memory_.hold(batch.back().pin_word);
  }
  const std::size_t objects = retired.size() + batch.size();
  retire(std::move(retired));
  if (!batch.empty()) move_out(lock, batch, demote);
  settle(batch, /*leave=*/true);
  if (full_rounds_ >= kMostFullRounds) full_rounds_ = 0;  // the next round tries again
  ++tiering_rounds_;
  room_made_.notify_all();
  return objects;
}

// After a commit, in its order: objects that are in memory only. How many.
std::size_t LocalStoreImpl::write_through(Lock& lock) {
  if (!ssd_->usable()) unwritten_.clear();  // they are written when they are evicted
  make_room_on_ssd(lock);
  std::vector<Departure> batch;
  std::uint64_t size = 0;
  while (!unwritten_.empty() && batch.size() < kBatchObjects && size < kBatchBytes) {
    const auto slot = table_->find(unwritten_.front());
    unwritten_.pop_front();
    if (!slot || table_->log_place(*slot) || table_->entry(*slot).held.tier != Tier::kDram) continue;
    batch.push_back(departure_of(*slot));
    batch.back().to_log = true;
    size += ArenaSet::rounded(table_->entry(*slot).held.bytes);
    memory_.hold(batch.back().pin_word);
  }
  if (batch.empty()) return 0;
  move_out(lock, batch, /*demote=*/false);
  settle(batch, /*leave=*/false);
  room_made_.notify_all();  // remove() waits for what is being appended
  return batch.size();
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
  for (const Departure& departure : batch) {
    if (departure.to_log) appending_.emplace(departure.id, std::nullopt);
  }
  writing_since_ = Clock::now();
  lock.unlock();
  std::vector<SsdTier::Write> writes;
  std::vector<Departure*> writers;
  for (Departure& departure : batch) {
    departure.taken = demote && callback && (*callback)(departure.id);
    if (departure.taken || !departure.to_log) continue;
    writes.push_back(std::move(departure.write));
    writers.push_back(&departure);
  }
  if (!writes.empty()) {
    std::vector<Result<LogPlace>> places = ssd_->append(writes, deadline_in(kWriteTime));
    for (std::size_t i = 0; i < places.size(); ++i) writers[i]->place = std::move(places[i]);
  }
  lock.lock();
  writing_since_.reset();
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
  lock.unlock();
  const std::uint64_t live = ssd_->usage().live_bytes + kBatchBytes, most = ssd_->most_live_bytes();
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
