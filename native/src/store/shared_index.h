// The node's hand on the index: puts objects into slots and takes them out. Readers look at any moment; see
// index_layout.h for the order of the stores. One writer at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvferry/node_id.h"
#include "store/index_layout.h"

namespace kvferry::store {

class SharedIndex {
 public:
  struct Entry {
    ObjectId id;
    Held held;
    std::uint64_t expires_ms = kNeverExpires;
  };

  // `memory` is zeroed and holds shape.bytes().
  SharedIndex(std::span<std::byte> memory, const IndexShape& shape, const NodeId& node);

  // A slot for an object to come; nothing if all are taken.
  std::optional<std::uint32_t> take_slot();
  void give_slot(std::uint32_t slot);  // of take_slot() and not put, or of erase()

  // Whether put() and move_to_memory() can say where so many places are.
  bool has_list_for(std::size_t places) const { return places <= 1 || lists_left() > 0; }
  // Makes the object visible. places: of Tier::kDram; see has_list_for().
  void put(std::uint32_t slot, const Entry& entry, std::span<const Place> places);
  // Invisible when this returns. The slot is not given back yet.
  void erase(std::uint32_t slot);
  void move_to_ssd(std::uint32_t slot);
  void move_to_memory(std::uint32_t slot, std::span<const Place> places);

  std::uint32_t generation(std::uint32_t slot) const { return state(slot).generation; }
  bool held(std::uint32_t slot) const { return state(slot).held(); }
  ObjectId id(std::uint32_t slot) const;
  Entry entry(std::uint32_t slot) const;
  std::vector<Place> places(std::uint32_t slot) const;
  std::uint64_t expires_ms(std::uint32_t slot) const;
  // Slots from here on were never used.
  std::uint32_t high_water() const { return high_water_; }
  std::uint64_t slots_left() const { return view_.shape.slots - high_water_ + spare_slots_.size(); }
  std::uint64_t lists_left() const { return view_.shape.scattered - lists_used_ + spare_lists_.size(); }
  std::uint64_t bytes() const { return view_.shape.bytes(); }
  std::uint64_t private_bytes() const { return (spare_slots_.capacity() + spare_lists_.capacity()) * 4; }

 private:
  SlotState state(std::uint32_t slot) const;
  void set_state(std::uint32_t slot, std::uint8_t flags, std::uint8_t replicas);
  std::uint8_t write_places(std::uint32_t slot, std::span<const Place> places);
  void drop_list(std::uint32_t slot, const SlotState& state);
  void unlink(std::uint32_t slot);

  IndexView view_;
  std::uint32_t high_water_ = 0;
  std::uint32_t lists_used_ = 0;
  std::vector<std::uint32_t> spare_slots_;
  std::vector<std::uint32_t> spare_lists_;
};

}  // namespace kvferry::store
