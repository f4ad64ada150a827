// What clients put without a message becomes part of the store, and they are offered memory for more.
#include "store/quick_settling.h"

#include <utility>

namespace kvferry::store {
namespace {

// Of all memory, what may be offered at once. It is free memory, and taken back when a put finds no other.
constexpr std::uint64_t kOfferedShare = 16;
constexpr std::uint64_t kOfferedSlots = 4;  // the same for slots, which are fewer in small stores

}  // namespace

void LocalStoreImpl::allow_quick_puts(bool allow) {
  const Lock lock(mutex_);
  if (allow == quick_.is_open() || (allow && closed_)) return;
  const QuickDoor none_comes(*this);
  quick_.open(allow);
  if (!allow) free_offers(quick_.take_back());
}

bool LocalStoreImpl::quick_puts_waiting() const {
  return quick_.waiting() || quick_unreported_.load(std::memory_order_acquire);
}

LocalStore::QuickPutsDone LocalStoreImpl::settle_quick_puts() {
  const Lock lock(mutex_);
  settle_quick();
  quick_unreported_.store(false, std::memory_order_release);
  return std::exchange(quick_done_, {});
}

void LocalStoreImpl::offer_quick_puts(std::uint32_t page, std::uint64_t bytes) {
  const Lock lock(mutex_);
  if (closed_) return;
  quick_.want(page, bytes, Clock::now());
  offer_memory();
}

void LocalStoreImpl::settle_quick() {
  if (!quick_.is_open() || !quick_.waiting()) return;
  { const QuickDoor all_in(*this); }
  offer_memory();
  call_for_upkeep(above_high_water());
}

// The door is locked, and so was every look of the client that put it: nothing of that id is here, unless the client
// did not look.
void LocalStoreImpl::take_in(QuickPuts::Put& put) {
  if (!put.sane || find_current(put.object.id)) {
    counters_.add(StoreCounters::kQuickRefused);
    free_offers({std::move(put.offer)});
    return;
  }
  counters_.add(StoreCounters::kPuts);
  counters_.add(StoreCounters::kPutBytes, put.object.bytes);
  counters_.add(StoreCounters::kQuickPuts);
  quick_done_.ids.push_back(put.object.id);
  quick_done_.bytes += put.object.bytes;
  quick_unreported_.store(true, std::memory_order_release);
  std::vector<Place> places = std::move(put.offer.places);
  places[0].length = put.object.bytes;
  table_->insert(put.offer.slot, put.object, {put.digest, Tier::kDram, std::move(places), put.expires_ms});
}

void LocalStoreImpl::offer_memory() {
  std::optional<std::uint32_t> refused;  // of one page, which have the same size
  for (const QuickPuts::Want& want : quick_.wanted()) {
    if (want.page != refused && !offer_one(want)) refused = want.page;
  }
}

bool LocalStoreImpl::may_offer(std::uint64_t room) const {
  const std::uint64_t offered = quick_.bytes() + room;
  if (offered > memory_.arenas().capacity() / kOfferedShare || used_bytes() + offered > high_water_) return false;
  return quick_.offers() + 1 <= table_->slots_left() / kOfferedSlots;
}

bool LocalStoreImpl::offer_one(const QuickPuts::Want& want) {
  // What the client was offered for values of other sizes stands back first: it does not write such ones now.
  if (!may_offer(want.room) && !(free_offers(quick_.take_back_others(want.page)) && may_offer(want.room))) return false;
  auto places = memory_.allocate(want.room);
  if (!places) return false;
  const auto slot = places->size() == 1 ? table_->take_slot() : std::nullopt;
  if (!slot) {
    memory_.give_back(*places, want.room);
    return false;
  }
  const QuickPuts::Offer offer{std::move(*places), want.room, *slot};
  if (quick_.offer(want.page, offer)) return true;
  free_offers(quick_.take_back_others(want.page));
  if (quick_.offer(want.page, offer)) return true;
  free_offers({offer});
  return false;
}

bool LocalStoreImpl::free_offers(std::vector<QuickPuts::Offer> offers) {
  for (const QuickPuts::Offer& offer : offers) {
    memory_.give_back(offer.places, offer.room);
    table_->give_slot(offer.slot);
  }
  return !offers.empty();
}

void LocalStoreImpl::end_client(std::uint32_t page) { free_offers(quick_.end(page)); }

}  // namespace kvferry::store
