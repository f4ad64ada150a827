// The memory of a node and who is reading it: arenas, pins, and memory in limbo, whose object is gone but which
// somebody still reads. Under the store's lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "store/arena_set.h"
#include "store/pin_leases.h"
#include "store/pin_pages.h"

namespace kvferry::store {

struct Retired {  // memory of an object that is invisible by now
  std::uint64_t pin_word = 0;
  std::vector<Place> places;
  std::uint64_t bytes = 0;  // of the object
};

class ObjectMemory {
 public:
  ObjectMemory(std::span<const std::uint64_t> arenas, std::span<std::byte> pins) : arenas_(arenas), pages_(pins) {}

  std::optional<std::vector<Place>> allocate(std::uint64_t bytes) { return arenas_.allocate(bytes); }
  // What no reader has ever seen.
  void give_back(std::span<const Place> places, std::uint64_t bytes) { arenas_.free(places, bytes); }
  // Free at once, or when the last pin has gone. The count of those that are still read.
  std::size_t retire(std::vector<Retired> batch);
  // Looks whether memory in limbo became free. The bytes that did.
  std::uint64_t reclaim();

  // Takes down what is pinned; pinned() then tells by that, and by the leases as they are.
  void look_at_pins();
  bool pinned(std::uint64_t pin_word) const {
    return holds_.count(pin_word) != 0 || leases_.pinned(pin_word) ||
           std::binary_search(seen_.begin(), seen_.end(), pin_word);
  }
  // The node itself reads an object's memory. One hold for each at most.
  void hold(std::uint64_t pin_word) { holds_.insert(pin_word); }
  void drop(std::uint64_t pin_word) { holds_.erase(pin_word); }
  const std::vector<std::uint64_t>& seen_pins() const {
    return seen_;
  }  // sorted, each once; leases included, holds not

  std::size_t count_pinned() const;  // objects, those in limbo included
  std::uint32_t clients() const { return pages_.clients(); }

  PinPages& pages() { return pages_; }
  PinLeases& leases() { return leases_; }
  const ArenaSet& arenas() const { return arenas_; }
  std::uint64_t limbo_bytes() const { return limbo_bytes_; }  // rounded as the arenas do
  std::uint64_t memory_bytes() const;

 private:
  ArenaSet arenas_;
  PinPages pages_;
  PinLeases leases_;
  std::vector<Retired> limbo_;
  std::uint64_t limbo_bytes_ = 0;
  std::vector<std::uint64_t> seen_;
  std::unordered_set<std::uint64_t> holds_;
};

}  // namespace kvferry::store
