// Which objects' time has come. Knows slots and times only; an entry whose object is gone stays until it is due, or
// until such entries are the most. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace kvferry::store {

class ExpiryQueue {
 public:
  // Says whether the slot still holds an object that ends at that time.
  using Current = std::function<bool(std::uint32_t slot, std::uint64_t expires_ms)>;

  void add(std::uint32_t slot, std::uint64_t expires_ms, const Current& current);
  // A slot whose time has come is removed from the queue and handed to `due` if it is current.
  void take_due(std::uint64_t now_ms, const Current& current, const std::function<void(std::uint32_t slot)>& due);
  std::uint64_t memory_bytes() const { return heap_.capacity() * sizeof(Entry); }

 private:
  using Entry = std::pair<std::uint64_t, std::uint32_t>;  // time, slot: soonest on top
  std::vector<Entry> heap_;
  std::size_t sweep_at_ = 1024;
};

}  // namespace kvferry::store
