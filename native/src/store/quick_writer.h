// The client's side of puts without a message: takes memory that the node offered, and says what was put there.
// Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <thread>

#include "store/quick_layout.h"

namespace kvferry::store {

class QuickWriter {
 public:
  // `pins`: of the node, as mapped here; `page`: the client's. It takes nothing if the node has no quick puts.
  QuickWriter(std::span<std::byte> pins, std::uint32_t page)
      : memory_(QuickMemory::of(pins)), page_(page), mine_(memory_.door != nullptr ? &memory_.pages[page] : nullptr) {}

  static bool suits(const NewObject& object) {
    return object.bytes > 0 && object.bytes <= kMaxObjectBytes && object.replicas == 1 && object.tags.empty() &&
           !object.extra && object.key.size() + object.tenant.size() <= kQuickTextBytes;
  }
  bool waiting() const;  // puts of any client that are not in the index yet
  bool may_put() const;

  // An entry whose memory is as large as the node makes it for so many bytes; ours until publish() or give_back().
  std::optional<std::uint32_t> take(std::uint64_t bytes) const;
  void give_back(std::uint32_t entry, std::uint64_t bytes) const;
  Place place(std::uint32_t entry, std::uint64_t bytes) const;
  void describe(std::uint32_t entry, const NewObject& object, const ContentDigest& digest) const;

  // `absent` looks into the index, and may be called again and again. False: the id is known, or waits to be known, or
  // the node is busy or takes no more of them.
  template <typename Absent>
  bool publish(std::uint32_t entry, const ObjectId& id, Absent absent) const {
    std::optional<Clock::time_point> until;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const std::uint64_t word = memory_.door->load(std::memory_order_acquire);
      const QuickDoor door = QuickDoor::of(word);
      if (!door.open || door.waiting >= kQuickWaiting) return false;
      if (door.locked) {
        if (!rest(until)) return false;
        continue;
      }
      if (!absent() || is_in_list(door, id)) return false;
      if (hang(entry, door, word)) return true;
    }
    return false;
  }
  // After a put of that size.
  bool should_ring(std::uint64_t bytes) const;

 private:
  static constexpr int kAttempts = 1024;  // enough for the node to take in all that may wait
  static constexpr milliseconds kPatience{100};
  // Lets others run. False: the first time was kPatience ago, so that the node stands still.
  static bool rest(std::optional<Clock::time_point>& until) {
    const Clock::time_point now = Clock::now();
    if (!until) until = now + kPatience;
    std::this_thread::yield();
    return now < *until;
  }
  bool is_in_list(const QuickDoor& door, const ObjectId& id) const;
  bool hang(std::uint32_t entry, const QuickDoor& door, std::uint64_t word) const;

  const QuickMemory memory_;
  const std::uint32_t page_;
  QuickPage* const mine_;
};

}  // namespace kvferry::store
