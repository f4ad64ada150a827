// Pins of readers on other hosts, which end with their lease. Under the store's lock.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "store/local_store.h"

namespace kvferry::store {

class PinLeases {
 public:
  PinId add(Session session, std::uint64_t pin_word, Deadline end);
  // False if there is none of that name, or it is not the session's.
  bool remove(Session session, PinId pin);
  void remove_session(Session session);
  // The count of leases that ended by `now`.
  std::uint64_t remove_ended(Clock::time_point now);

  bool pinned(std::uint64_t pin_word) const { return counts_.count(pin_word) != 0; }
  void collect(std::vector<std::uint64_t>& pinned) const;  // appends
  std::size_t size() const { return leases_.size(); }
  std::uint64_t memory_bytes() const { return leases_.size() * 64 + counts_.size() * 32; }  // roughly

 private:
  struct Lease {
    Session session = 0;
    std::uint64_t pin_word = 0;
    Deadline end;
  };
  void drop(std::uint64_t pin_word);

  std::unordered_map<PinId, Lease> leases_;
  std::unordered_map<std::uint64_t, std::uint32_t> counts_;
  PinId last_ = 0;
};

}  // namespace kvferry::store
