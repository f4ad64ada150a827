#include "store/local_reader.h"

#include <algorithm>
#include <string>
#include <utility>

#include "memory/address_range.h"
#include "store/client_page.h"
#include "store/index_reader.h"
#include "store/quick_writer.h"
#include "store/runs.h"

namespace kvferry::store {
namespace {

class SharedReader final : public LocalReader {
 public:
  SharedReader(IndexReader index, PinPage& page, std::vector<std::span<std::byte>> arenas, QuickWriter quick)
      : index_(index), page_(page), arenas_(std::move(arenas)), quick_(quick) {}

  std::optional<Held> find(const ObjectId& id) const override {
    const auto found = index_.find(id, monotonic_ms());
    if (!found || !index_.trusted()) return std::nullopt;
    return found->held;
  }

  void exists(std::span<const ObjectId> ids, std::span<std::uint8_t> found) const override {
    index_.exists(ids, found);
    if (!index_.trusted()) std::fill(found.begin(), found.end(), std::uint8_t{0});
  }

  Result<std::optional<LocalPin>> pin(const ObjectId& id) override;

  void unpin(const LocalPin& pin) override {
    if (page_.in_use(pin.entry)) page_.leave(pin.entry);
  }

  void accessed(std::span<const ObjectId> ids) override {
    const std::uint64_t now_ms = monotonic_ms();
    // The page has room for so many notes: later ones would take the place of the first.
    for (const ObjectId& id : ids.last(std::min<std::size_t>(ids.size(), kAccessNotes))) {
      const auto found = index_.find(id, now_ms);
      if (found) page_.note_access(found->slot);
    }
  }

  std::span<std::byte> memory(const Place& place) const override {
    if (place.arena >= arenas_.size()) return {};
    const std::span<std::byte> arena = arenas_[place.arena];
    if (!range_fits(place.offset, place.length, arena.size())) return {};
    return arena.subspan(place.offset, place.length);
  }

  bool begin_writing(Session session) override { return page_.begin_writing(session); }
  void end_writing(Session session) override { page_.end_writing(session); }

  QuickPut put(const NewObject& object, ConstPieces value, Stores stores) override;
  bool puts_waiting() const override { return quick_.waiting(); }
  bool knows_all() const override { return index_.always_trusted(); }

 private:
  bool all_mapped(const std::vector<Place>& places) const {
    for (const Place& place : places) {
      if (memory(place).size() != place.length) return false;
    }
    return true;
  }

  const IndexReader index_;
  ClientPage page_;
  const std::vector<std::span<std::byte>> arenas_;
  const QuickWriter quick_;
};

LocalReader::QuickPut SharedReader::put(const NewObject& object, ConstPieces value, Stores stores) {
  if (!QuickWriter::suits(object) || !quick_.may_put() || index_.find(object.id, monotonic_ms())) return {};
  const auto entry = quick_.take(object.bytes);
  if (!entry) return {};
  const std::span<std::byte> target = memory(quick_.place(*entry, object.bytes));
  if (target.size() != object.bytes) return {};  // not ours to give back: it is no memory of the node's
  quick_.describe(*entry, object, copy_and_digest(value, Pieces(&target, 1), stores));
  const auto absent = [&] { return !index_.find(object.id, monotonic_ms()); };
  QuickPut put;
  put.stored = quick_.publish(*entry, object.id, absent);
  if (put.stored) {
    put.ring = quick_.should_ring(object.bytes);
  } else {
    quick_.give_back(*entry, object.bytes);
  }
  return put;
}

Result<std::optional<LocalPin>> SharedReader::pin(const ObjectId& id) {
  // An object may go and come back between look and pin, over and over; the node makes progress with each.
  constexpr int kAttempts = 1000;
  const std::uint64_t now_ms = monotonic_ms();
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto found = index_.find(id, now_ms);
    if (!found || found->held.tier != Tier::kDram) return std::optional<LocalPin>();
    const auto entry = page_.enter(pin_word(found->slot, SlotState::of(found->state).generation));
    if (!entry) {
      return {Code::kResourceExhausted,
              "this client holds " + std::to_string(kPinEntries) + " pins, the most it can have; release some of them"};
    }
    LocalPin pin{*entry, found->held, {}};
    if (index_.unchanged(*found) && index_.places(*found, pin.places)) {
      if (!index_.trusted()) {
        page_.leave(*entry);
        return std::optional<LocalPin>();
      }
      if (all_mapped(pin.places)) {
        page_.note_access(found->slot);
        return std::optional<LocalPin>(std::move(pin));
      }
      page_.leave(*entry);
      return {Code::kProtocolError, "the index says that object " + id.to_string() + " lies outside the memory"};
    }
    page_.leave(*entry);
  }
  return {Code::kUnavailable, "object " + id.to_string() + " keeps changing; try again"};
}

}  // namespace

Result<std::unique_ptr<LocalReader>> LocalReader::attach(const SharedMemory& memory, std::uint32_t page,
                                                         const NodeId& node) {
  KVF_ASSIGN_OR_RETURN(const IndexReader index, IndexReader::attach(memory.index, node));
  const std::uint64_t pin_bytes = std::min<std::uint64_t>(memory.pins.size(), kPinsBytes);
  const auto pins = std::span(reinterpret_cast<PinPage*>(memory.pins.data()), pin_bytes / sizeof(PinPage));
  if (page >= pins.size()) {
    return {Code::kProtocolError,
            "pins: no page " + std::to_string(page) + " in memory of " + std::to_string(memory.pins.size()) + " bytes"};
  }
  return std::unique_ptr<LocalReader>(
      std::make_unique<SharedReader>(index, pins[page], memory.arenas, QuickWriter(memory.pins, page)));
}

}  // namespace kvferry::store
