// Looks objects up in the index, without a lock and without waiting for the node. Used by clients, which trust nothing
// that they read, and by the node itself. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvferry/node_id.h"
#include "kvferry/status.h"
#include "store/index_layout.h"

namespace kvferry::store {

struct Found {  // an object as it was at one moment
  std::uint32_t slot = 0;
  std::uint64_t state = 0;  // SlotState as a word: as long as the slot has it, the object is there, unchanged
  Held held;
  std::uint64_t expires_ms = kNeverExpires;
  std::uint64_t place = 0;
};

class IndexReader {
 public:
  // kProtocolError: not an index of this version, not `node`'s, or larger than the memory.
  static Result<IndexReader> attach(std::span<const std::byte> memory, const NodeId& node);

  // Nothing if it is absent or its time has come at `now_ms`. An object that is there all the while is always found.
  std::optional<Found> find(const ObjectId& id, std::uint64_t now_ms) const;
  // found[i] becomes 1 or 0. Faster than one by one: the memory is fetched ahead.
  void exists(std::span<const ObjectId> ids, std::span<std::uint8_t> found) const;
  // Where it lies, if it still is as it was found; each length is part of held.bytes. Offsets are not checked.
  bool places(const Found& found, std::vector<Place>& places) const;
  bool unchanged(const Found& found) const {
    return view_.slots[found.slot].state.load(std::memory_order_seq_cst) == found.state;
  }
  // What is in a slot now.
  std::optional<std::pair<ObjectId, Found>> at(std::uint32_t slot) const;
  std::uint64_t slots() const { return view_.shape.slots; }
  // For clients, to be asked after a look: the node was there to hear what others had removed (pulse.h).
  bool trusted() const {
    const std::uint64_t until = view_.header->trusted_until.load(std::memory_order_acquire);
    return until == 0 || monotonic_ms() < until;
  }
  // No other node has anything to say about what is here.
  bool always_trusted() const { return view_.header->trusted_until.load(std::memory_order_acquire) == 0; }

 private:
  struct Walk;
  explicit IndexReader(const IndexView& view) : view_(view) {}
  enum class Look : std::uint8_t { kSeen, kEmpty, kChanged };
  Look look_at(std::uint32_t slot, ObjectId& id, Found& found) const;
  void fetch_slot(std::uint32_t at) const;  // to come into the cache
  void fetch_second(const ObjectId& id) const;
  bool walk_chain(const ObjectId& id, Walk& walk) const;
  IndexView view_;
};

}  // namespace kvferry::store
