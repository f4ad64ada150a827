#include "store/quick_puts.h"

#include <algorithm>
#include <utility>

#include "store/extent_allocator.h"

namespace kvferry::store {
namespace {

constexpr milliseconds kIdle{1000};

std::uint64_t rounded(std::uint64_t bytes) { return ExtentAllocator::rounded(bytes); }

}  // namespace

bool QuickPuts::waiting() const {
  if (memory_.door == nullptr) return false;
  const QuickDoor now = door();
  return now.locked || now.waiting > 0;
}

void QuickPuts::open(bool open) {
  if (memory_.door == nullptr || open == open_) return;
  open_ = open;
  QuickDoor now = door();  // nobody else changes it: it is locked, or was not open
  ++now.version;
  now.open = open;
  memory_.door->store(now.word(), std::memory_order_release);
}

std::vector<QuickPuts::Put> QuickPuts::lock() {
  if (memory_.door == nullptr) return {};
  std::uint64_t word = memory_.door->load(std::memory_order_acquire);
  QuickDoor now;
  do {
    now = QuickDoor::of(word);
  } while (!memory_.door->compare_exchange_weak(word, QuickDoor{now.version + 1, 0, 0, true, now.open}.word(),
                                                std::memory_order_acq_rel, std::memory_order_acquire));
  std::vector<Put> puts;
  std::uint32_t ref = now.last;
  for (std::uint32_t i = 0; i < now.waiting && ref > 0 && ref <= memory_.pages.size() * kQuickEntries; ++i) {
    const std::uint64_t before = memory_.entry(ref).link.load(std::memory_order_relaxed);
    if (auto put = take(ref)) puts.push_back(*std::move(put));
    ref = static_cast<std::uint32_t>(before);
  }
  std::reverse(puts.begin(), puts.end());
  return puts;
}

void QuickPuts::unlock() {
  if (memory_.door == nullptr) return;
  const QuickDoor now = door();
  memory_.door->store(QuickDoor{now.version + 1, 0, 0, false, now.open}.word(), std::memory_order_release);
}

std::optional<QuickPuts::Put> QuickPuts::take(std::uint32_t ref) {
  const std::uint32_t page = (ref - 1) / kQuickEntries;
  const std::uint32_t entry = (ref - 1) % kQuickEntries;
  Client* const from = client(page);
  if (from == nullptr || !from->offers[entry]) return std::nullopt;
  SharedWord& state = memory_.pages[page].state[entry];
  const std::uint64_t taken = quick_state(from->offers[entry]->room, QuickUse::kTaken);
  if (state.load(std::memory_order_acquire) != taken) return std::nullopt;
  Put put;
  read(memory_.pages[page].entries[entry], &put);
  from->used = Clock::now();
  put.offer = release(*from, entry);
  state.store(quick_state(0, QuickUse::kNone), std::memory_order_release);
  put.sane = put.sane && rounded(put.object.bytes) == put.offer.room &&
             ObjectIds(put.object.tenant).of(put.object.key) == put.object.id;
  return put;
}

void QuickPuts::read(const QuickEntry& entry, Put* put) {
  const std::size_t key = entry.key_bytes;
  const std::size_t tenant = entry.tenant_bytes;
  if (key == 0 || tenant > kMaxTenantBytes || key + tenant > kQuickTextBytes) return;
  NewObject& object = put->object;
  object.id = {entry.id[0].load(std::memory_order_relaxed), entry.id[1].load(std::memory_order_relaxed)};
  object.key.assign(entry.text, key);
  object.tenant.assign(entry.text + key, tenant);
  object.bytes = entry.bytes;
  object.parent = {entry.parent[0], entry.parent[1]};
  object.depth = entry.depth;
  put->digest = {entry.digest[0], entry.digest[1]};
  put->expires_ms = std::min(entry.expires_ms, kNeverExpires);
  put->sane = object.bytes > 0 && object.bytes <= kMaxObjectBytes;
}

void QuickPuts::want(std::uint32_t page, std::uint64_t bytes, Clock::time_point now) {
  const bool possible = bytes > 0 && bytes <= kMaxObjectBytes;
  if (memory_.door == nullptr || !open_ || !possible || page >= memory_.pages.size()) return;
  if (clients_.size() <= page) clients_.resize(page + 1);
  if (!clients_[page]) clients_[page] = std::make_unique<Client>();
  clients_[page]->room = rounded(bytes);
  clients_[page]->used = now;
}

std::vector<QuickPuts::Want> QuickPuts::wanted() {
  std::vector<Want> all;
  for (std::uint32_t page = 0; page < clients_.size() && open_; ++page) {
    const Client* const of = clients_[page].get();
    if (of == nullptr || of->room == 0) continue;
    const auto has = std::ranges::count_if(of->offers, [&](const auto& o) { return o && o->room == of->room; });
    const auto lacks = std::int64_t{quick_offers_for(of->room)} - has;
    for (std::int64_t i = 0; i < lacks; ++i) all.push_back({page, of->room});
  }
  return all;
}

bool QuickPuts::offer(std::uint32_t page, const Offer& offer) {
  Client* const to = client(page);
  if (to == nullptr || offer.places.size() != 1) return false;
  const auto free = std::ranges::find_if(to->offers, [](const auto& one) { return !one; });
  if (free == to->offers.end()) return false;
  const auto entry = static_cast<std::size_t>(free - to->offers.begin());
  *free = offer;
  bytes_ += offer.room;
  ++offers_;
  QuickPage& shared = memory_.pages[page];
  shared.entries[entry].place.store(place_word(offer.places[0]), std::memory_order_relaxed);
  shared.state[entry].store(quick_state(offer.room, QuickUse::kOffered), std::memory_order_release);
  return true;
}

QuickPuts::Offer QuickPuts::release(Client& client, std::uint32_t entry) {
  Offer out = *std::exchange(client.offers[entry], std::nullopt);
  bytes_ -= out.room;
  --offers_;
  return out;
}

std::optional<QuickPuts::Offer> QuickPuts::take_back(std::uint32_t page, std::uint32_t entry) {
  Client& from = *clients_[page];
  if (!from.offers[entry]) return std::nullopt;
  std::uint64_t offered = quick_state(from.offers[entry]->room, QuickUse::kOffered);
  // Of a client that takes it and this, one succeeds.
  if (!memory_.pages[page].state[entry].compare_exchange_strong(offered, quick_state(0, QuickUse::kNone),
                                                                std::memory_order_acq_rel)) {
    return std::nullopt;
  }
  return release(from, entry);
}

void QuickPuts::take_back_of(std::uint32_t page, std::uint64_t but_room, std::vector<Offer>* out) {
  const Client& from = *clients_[page];
  for (std::uint32_t entry = 0; entry < kQuickEntries; ++entry) {
    if (from.offers[entry] && from.offers[entry]->room == but_room) continue;
    if (auto offer = take_back(page, entry)) out->push_back(*std::move(offer));
  }
}

std::vector<QuickPuts::Offer> QuickPuts::take_back_others(std::uint32_t page) {
  std::vector<Offer> all;
  if (const Client* const of = client(page)) take_back_of(page, of->room, &all);
  return all;
}

std::vector<QuickPuts::Offer> QuickPuts::take_back() {
  std::vector<Offer> all;
  for (std::uint32_t page = 0; page < clients_.size() && offers_ > 0; ++page) {
    if (client(page) != nullptr) take_back_of(page, 0, &all);
  }
  return all;
}

std::vector<QuickPuts::Offer> QuickPuts::take_back_idle(Clock::time_point now) {
  std::vector<Offer> all;
  for (std::uint32_t page = 0; page < clients_.size(); ++page) {
    Client* const of = client(page);
    if (of == nullptr || (open_ && now - of->used < kIdle)) continue;
    of->room = 0;
    take_back_of(page, 0, &all);
  }
  return all;
}

std::vector<QuickPuts::Offer> QuickPuts::end(std::uint32_t page) {
  std::vector<Offer> all;
  if (memory_.door != nullptr && page < memory_.pages.size()) {
    for (SharedWord& state : memory_.pages[page].state) state.store(0, std::memory_order_release);
  }
  Client* const of = client(page);
  if (of == nullptr) return all;
  for (std::uint32_t entry = 0; entry < kQuickEntries; ++entry) {
    if (of->offers[entry]) all.push_back(release(*of, entry));
  }
  clients_[page].reset();
  return all;
}

}  // namespace kvferry::store
