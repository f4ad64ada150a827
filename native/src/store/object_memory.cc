#include "store/object_memory.h"

#include <utility>

namespace kvferry::store {

void ObjectMemory::look_at_pins() {
  seen_.clear();
  pages_.collect(seen_);
  leases_.collect(seen_);
  std::sort(seen_.begin(), seen_.end());
  seen_.erase(std::unique(seen_.begin(), seen_.end()), seen_.end());
}

std::size_t ObjectMemory::retire(std::vector<Retired> batch) {
  if (batch.empty()) return 0;
  look_at_pins();
  const std::size_t before = limbo_.size();
  for (Retired& retired : batch) {
    if (!pinned(retired.pin_word)) {
      arenas_.free(retired.places, retired.bytes);
    } else if (!retired.places.empty()) {
      limbo_bytes_ += ArenaSet::rounded(retired.bytes);
      limbo_.push_back(std::move(retired));
    }
  }
  return limbo_.size() - before;
}

std::uint64_t ObjectMemory::reclaim() {
  if (limbo_.empty()) return 0;
  look_at_pins();
  const std::uint64_t before = limbo_bytes_;
  std::erase_if(limbo_, [this](const Retired& retired) {
    if (pinned(retired.pin_word)) return false;
    arenas_.free(retired.places, retired.bytes);
    limbo_bytes_ -= ArenaSet::rounded(retired.bytes);
    return true;
  });
  return before - limbo_bytes_;
}

std::size_t ObjectMemory::count_pinned() const {
  std::vector<std::uint64_t> pinned;
  pages_.collect(pinned);
  leases_.collect(pinned);
  std::sort(pinned.begin(), pinned.end());
  return static_cast<std::size_t>(std::unique(pinned.begin(), pinned.end()) - pinned.begin());
}

std::uint64_t ObjectMemory::memory_bytes() const {
  return arenas_.memory_bytes() + leases_.memory_bytes() + limbo_.capacity() * sizeof(Retired);
}

}  // namespace kvferry::store
