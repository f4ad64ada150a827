// What a store does by itself: a thread that wakes some times a second, or when it is called.
#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "store/local_store_impl.h"

namespace kvferry::store {
namespace {

constexpr milliseconds kRound{100};
constexpr std::size_t kObjectsPerStep = 64;  // between two of them others get the lock

}  // namespace

void LocalStoreImpl::upkeep() {
  Lock lock(mutex_);
  while (!closed_) {
    upkeep_wanted_.wait_for(lock, kRound, [this] { return closed_ || upkeep_called_; });
    upkeep_called_ = false;
    settle_quick();
    free_offers(quick_.take_back_idle(Clock::now()));
    forget_expired();
    look_after_leases();
    drain_accesses();
    memory_.reclaim();
    if (tiers()) {
      if (above_high_water()) call_for_tiering();
    } else {
      evict_to_low_water(lock);
    }
    look_after_clients(lock);
    look_after_ended_sessions(lock);
    report_dropped(lock);
  }
}

void LocalStoreImpl::look_after_leases() {
  const auto now = Clock::now();
  const std::vector<Slot> slots = puts_.end_leases(now);
  for (const Slot slot : slots) table_->give_slot(slot);
  counters_.add(StoreCounters::kPutLeasesEnded, slots.size());
  counters_.add(StoreCounters::kPinLeasesEnded, memory_.leases().remove_ended(now));
}

// The last one stays, however large it is: a put that was answered with OK is not taken back for nobody's sake.
void LocalStoreImpl::evict_to_low_water(Lock& lock) {
  if (!above_high_water()) return;
  while (!closed_ && used_bytes() > low_water_ && table_->dram_objects() > 1) {
    memory_.look_at_pins();
    const std::size_t most = std::min<std::size_t>(kObjectsPerStep, table_->dram_objects() - 1);
    if (evict(used_bytes() - low_water_, most) == 0) return;
    lock.unlock();
    lock.lock();
  }
}

void LocalStoreImpl::look_after_clients(Lock& lock) {
  const std::vector<PinPages::Watched> clients = memory_.pages().watched();
  lock.unlock();
  std::vector<PinPages::Watched> gone;
  for (const PinPages::Watched& client : clients) {
    if (*client.gone && (*client.gone)()) gone.push_back(client);
  }
  lock.lock();
  for (const PinPages::Watched& client : gone) {
    if (!memory_.pages().is_same(client)) continue;
    settle_quick();  // it may have put until its end
    end_client(client.page);
    memory_.pages().remove(client.page);
    counters_.add(StoreCounters::kClientsGone);
  }
}

void LocalStoreImpl::look_after_ended_sessions(Lock& lock) {
  const auto ending = puts_.ending();
  if (ending.empty()) return;
  lock.unlock();
  std::vector<std::shared_ptr<const Reservations::StillWrites>> ended;
  for (const auto& still_writes : ending) {
    if (!(*still_writes)()) ended.push_back(still_writes);
  }
  lock.lock();
  for (const auto& still_writes : ended) {
    for (Reservation& put : puts_.take_written(still_writes)) release(put);
  }
}

void LocalStoreImpl::report_dropped(Lock& lock) {
  if (dropped_.empty()) return;
  const std::vector<ObjectId> dropped = std::exchange(dropped_, {});
  const std::shared_ptr<const DroppedCallback> callback = on_dropped_;
  if (!callback) return;
  lock.unlock();
  (*callback)(dropped);
  lock.lock();
}

}  // namespace kvferry::store
