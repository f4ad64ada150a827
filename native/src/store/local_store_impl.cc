#include "store/quick_settling.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/deadline.h"

namespace kvferry::store {
namespace {

std::vector<std::uint64_t> lengths_of(const std::vector<std::span<std::byte>>& arenas) {
  std::vector<std::uint64_t> lengths;
  for (const std::span<std::byte> arena : arenas) lengths.push_back(arena.size());
  return lengths;
}

std::uint64_t share_of(std::uint64_t bytes, double share) {
  return static_cast<std::uint64_t>(static_cast<double>(bytes) * std::clamp(share, 0.0, 1.0));
}

std::uint64_t expiry_of(const NewObject& object) {
  if (!object.expires_in) return kNeverExpires;
  const auto in_ms = std::clamp(*object.expires_in, milliseconds(0), kLongestWait);
  return monotonic_ms() + static_cast<std::uint64_t>(in_ms.count());
}

Status closed_status() { return {Code::kUnavailable, "the node's store is closed"}; }

Status unknown_put(PutId put) {
  return {Code::kNotFound, "put " + std::to_string(put) + ": unknown, or not committed within its lease; put it again"};
}

}  // namespace

std::uint64_t LocalStore::index_bytes(const NodeOptions& options) { return IndexShape::of(options).bytes(); }

Status LocalStore::check_index(const NodeOptions& options) { return IndexShape::check(options); }

std::string LocalStore::about_index(const NodeOptions& options) { return IndexShape::advice(options); }

std::uint64_t LocalStore::pins_bytes(const NodeOptions&) { return kPinsBytes + kQuickBytes; }

Result<std::unique_ptr<LocalStore>> LocalStore::create(LocalStoreOptions options) {
  if (options.pins.size() < pins_bytes(options.node)) {
    return {Code::kInvalidArgument, "the pins need " + std::to_string(pins_bytes(options.node)) + " bytes"};
  }
  KVF_ASSIGN_OR_RETURN(auto table, ObjectTable::create(options.index, options.node_id, options.node));
  std::shared_ptr<log::Disk> disk = std::move(options.ssd_disk);
  auto store = std::make_unique<LocalStoreImpl>(std::move(options), std::move(table));
  KVF_RETURN_IF_ERROR(store->start(std::move(disk)));
  return std::unique_ptr<LocalStore>(std::move(store));
}

LocalStoreImpl::LocalStoreImpl(LocalStoreOptions options, std::unique_ptr<ObjectTable> table)
    : options_(std::move(options.node)),
      arenas_(std::move(options.arenas)),
      table_(std::move(table)),
      memory_(lengths_of(arenas_), options.pins.first(kPinsBytes)),
      quick_(options.pins) {
  const std::uint64_t capacity = memory_.arenas().capacity();
  high_water_ = share_of(capacity, options_.watermark_high);
  low_water_ = std::min(high_water_, share_of(capacity, options_.watermark_low));
}

LocalStoreImpl::~LocalStoreImpl() { close(); }

Status LocalStoreImpl::start(std::shared_ptr<log::Disk> disk) {
  if (!options_.ssd_directory.empty()) {
    const SsdTier::Callbacks callbacks{
        [this](const SsdObject& found, const LogPlace& place) { return recover(found, place); },
        [this](const ObjectId& id, const LogPlace& from, const LogPlace& to) { return moved(id, from, to); }};
    auto opened = SsdTier::open(options_, std::move(disk), callbacks, counters_);
    if (!opened.ok()) return opened.status();
    ssd_ = std::move(*opened);
    prefetching_ = std::thread([this] { prefetching(); });
  }
  const std::size_t movers = !tiers() ? 0 : options_.demote_to_remote ? 1 : kMovers;  // others are asked one by one
  for (std::size_t i = 0; i < movers; ++i) tiering_.emplace_back([this] { tiering(); });
  upkeep_ = std::thread([this] { upkeep(); });
  return {};
}

void LocalStoreImpl::close() {
  allow_quick_puts(false);
  {
    const Lock lock(mutex_);
    if (closed_) return;
    closed_ = true;
  }
  for (std::condition_variable* waiting :
       {&upkeep_wanted_, &tiering_wanted_, &prefetch_wanted_, &room_made_, &loaded_}) {
    waiting->notify_all();
  }
  for (std::thread* thread : {&upkeep_, &prefetching_}) {
    if (thread->joinable()) thread->join();
  }
  for (std::thread& thread : tiering_) thread.join();
  if (ssd_) ssd_->close();
}

std::optional<Slot> LocalStoreImpl::find_current(const ObjectId& id) {
  const auto slot = table_->find(id);
  if (!slot || !table_->expired(*slot, monotonic_ms())) return slot;
  counters_.add(StoreCounters::kExpired);
  retire({give_up(*slot)});
  return std::nullopt;
}

Retired LocalStoreImpl::take_out(Slot slot) {
  if (const auto place = table_->log_place(slot)) {
    log_erases_.push_back({table_->id(slot), *place});
    call_for_tiering();
  }
  return table_->erase(slot);
}

Retired LocalStoreImpl::give_up(Slot slot) {
  if (on_dropped_) dropped_.push_back(table_->id(slot));
  return take_out(slot);
}

void LocalStoreImpl::release(Reservation& put) {
  memory_.give_back(put.places, put.object.bytes);
  if (!put.ended) table_->give_slot(put.slot);
  room_changed();
}

Result<Reserved> LocalStoreImpl::reserve(Session session, const NewObject& object, Deadline deadline) {
  KVF_RETURN_IF_ERROR(check_object(object));
  Lock lock(mutex_);
  if (closed_) return closed_status();
  Reserved reserved;
  if (const auto slot = find_current(object.id)) {
    table_->accessed(*slot);
    counters_.add(StoreCounters::kPutsExisting);
    reserved.existing = table_->entry(*slot).held;
    return reserved;
  }
  KVF_ASSIGN_OR_RETURN(reserved.places, make_room(lock, object.bytes, deadline, Purpose::kPut));
  const std::uint64_t waiting = ArenaSet::rounded(object.bytes);
  slotless_bytes_ += waiting;
  auto slot = make_slot(lock, deadline);
  slotless_bytes_ -= waiting;
  if (!slot.ok()) {
    memory_.give_back(reserved.places, object.bytes);
    room_changed();
    return slot.status();
  }
  reserved.put =
      puts_.add({session, object, *slot, reserved.places, deadline_in(options_.reservation_lease), /*ended=*/false});
  call_for_upkeep(above_high_water());
  return reserved;
}

Result<bool> LocalStoreImpl::commit(Session session, PutId put, const ContentDigest& digest) {
  const Lock lock(mutex_);
  if (closed_) return closed_status();
  const Reservation* const known = puts_.find(session, put);
  if (known == nullptr || known->ended) return unknown_put(put);
  if (puts_.is_contested(put)) {
    return {Code::kStale, "put " + std::to_string(put) + ": its object was removed while it was on its way"};
  }
  Reservation reservation = *puts_.take(session, put);
  const QuickDoor no_others(*this);
  if (const auto slot = find_current(reservation.object.id)) return settle_duplicate(reservation, *slot, digest);
  counters_.add(StoreCounters::kPuts);
  counters_.add(StoreCounters::kPutBytes, reservation.object.bytes);
  table_->insert(reservation.slot, reservation.object,
                 {digest, Tier::kDram, std::move(reservation.places), expiry_of(reservation.object)});
  if (ssd_ && options_.ssd_write == WriteMode::kWriteThrough && !reservation.object.extra) {
    await_write(reservation.object.id);
  }
  room_changed();
  return true;
}

// Two puts of one id were under way, and this one comes second.
Result<bool> LocalStoreImpl::settle_duplicate(Reservation& put, Slot slot, const ContentDigest& digest) {
  release(put);
  const Held held = table_->entry(slot).held;
  if (held.bytes == put.object.bytes && held.digest == digest) {
    counters_.add(StoreCounters::kPutsExisting);
    return false;
  }
  counters_.add(StoreCounters::kPutConflicts);
  return {Code::kConflict, "object " + put.object.id.to_string() + " holds other bytes already: " +
                               std::to_string(held.bytes) + " of them; objects are written once"};
}

void LocalStoreImpl::abort(Session session, PutId put) {
  const Lock lock(mutex_);
  auto reservation = puts_.take(session, put);
  if (!reservation) return;
  release(*reservation);
  counters_.add(StoreCounters::kPutsAborted);
}

std::optional<Held> LocalStoreImpl::find(const ObjectId& id) const {
  const auto found = table_->reader().find(id, monotonic_ms());
  if (!found) return std::nullopt;
  return found->held;
}

Result<Pinned> LocalStoreImpl::pin(Session session, const ObjectId& id, Deadline deadline) {
  // What was brought back may have gone again, or the log moved it just then.
  constexpr int kAttempts = 16;
  Lock lock(mutex_);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (closed_) return closed_status();
    const auto slot = find_current(id);
    if (!slot) {
      counters_.add(StoreCounters::kPinsOfAbsent);
      return {Code::kNotFound, "object " + id.to_string() + " is not here"};
    }
    if (table_->entry(*slot).held.tier == Tier::kDram) return pin_in_memory(session, *slot);
    KVF_RETURN_IF_ERROR(bring_back(lock, id, *slot, deadline));
  }
  return {Code::kUnavailable, "object " + id.to_string() + " was brought back from SSD " + std::to_string(kAttempts) +
                                  " times and evicted each time before it could be pinned; try again"};
}

Pinned LocalStoreImpl::pin_in_memory(Session session, Slot slot) {
  counters_.add(StoreCounters::kPins);
  table_->accessed(slot);
  Pinned pinned;
  pinned.pin = memory_.leases().add(session, table_->pin_word_of(slot), deadline_in(options_.pin_lease));
  pinned.held = table_->entry(slot).held;
  pinned.places = table_->places(slot);
  return pinned;
}

bool LocalStoreImpl::unpin(Session session, PinId pin) {
  const Lock lock(mutex_);
  return memory_.leases().remove(session, pin);
}

bool LocalStoreImpl::remove(const ObjectId& id) {
  Lock lock(mutex_);
  puts_.contest(id);
  const auto slot = find_current(id);
  if (!slot) return false;
  counters_.add(StoreCounters::kRemoved);
  retire({take_out(*slot)});
  if (ssd_) erase_now(lock, id);
  return true;
}

bool LocalStoreImpl::hold_puts_back(const ObjectId& id) {
  const Lock lock(mutex_);
  if (find_current(id)) return false;
  puts_.hold_back(id);
  return true;
}

void LocalStoreImpl::release_puts(const ObjectId& id) {
  const Lock lock(mutex_);
  puts_.release(id);
}

void LocalStoreImpl::contest_puts() {
  const Lock lock(mutex_);
  puts_.contest_all();
}

void LocalStoreImpl::end_session(Session session, std::function<bool()> still_writes) {
  const Lock lock(mutex_);
  memory_.leases().remove_session(session);
  for (Reservation& put : puts_.end_session(session, std::move(still_writes))) release(put);
}

Result<std::uint32_t> LocalStoreImpl::add_client(std::function<bool()> gone) {
  const Lock lock(mutex_);
  if (closed_) return closed_status();
  KVF_ASSIGN_OR_RETURN(const std::uint32_t page, memory_.pages().add(std::move(gone)));
  end_client(page);  // whatever its last client left
  return page;
}

void LocalStoreImpl::remove_client(std::uint32_t page) {
  const Lock lock(mutex_);
  settle_quick();
  end_client(page);
  memory_.pages().remove(page);
}

void LocalStoreImpl::on_dropped(DroppedCallback callback) {
  const Lock lock(mutex_);
  on_dropped_ = callback ? std::make_shared<const DroppedCallback>(std::move(callback)) : nullptr;
}

void LocalStoreImpl::on_demote(DemoteCallback callback) {
  const Lock lock(mutex_);
  on_demote_ = callback ? std::make_shared<const DemoteCallback>(std::move(callback)) : nullptr;
}

}  // namespace kvferry::store
