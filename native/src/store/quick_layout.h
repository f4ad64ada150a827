// The memory through which clients of a host put without a message: docs/store-node.md, "Quick puts", byte by byte. It
// lies behind the pages of pins: one word for all, the door, then a page for each client.
//
// The node offers places in its memory to a client ahead of any put. The client takes one, writes the value and what
// the node must know, and hangs the entry into the list that the door names, by one compare-and-swap. From then on the
// object is put: whoever wants to know what the node has asks the node, which takes in the list first. While the node
// makes objects visible by itself the door is locked, and every change of the list or the lock is a new version of the
// word; so a client whose compare-and-swap succeeds knows that nothing was put between its look at index and list and
// its own put.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "store/pin_layout.h"

namespace kvferry::store {

inline constexpr std::uint32_t kQuickEntries = 64;   // of one client
inline constexpr std::uint32_t kQuickWaiting = 128;  // puts of all clients that may wait to be taken in
inline constexpr std::uint32_t kQuickTextBytes =
    424;  // of key and tenant together; with longer ones puts go by message

// How many places for values of `room` bytes (as the arenas round them) a client is offered, if there is memory.
constexpr std::uint32_t quick_offers_for(std::uint64_t room) {
  constexpr std::uint64_t kClientBytes = 32u << 20;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(kClientBytes / room, 2, kQuickEntries));
}

struct QuickDoor {
  std::uint64_t version = 0;  // 39 bits
  std::uint32_t waiting = 0;  // how many are in the list, 8 bits
  std::uint32_t last = 0;     // QuickRef of the newest, 15 bits; 0: none
  bool locked = false;        // the node is taking in
  bool open = false;          // else all puts go by message

  static constexpr std::uint64_t kVersions = (1ull << 39) - 1;
  static QuickDoor of(std::uint64_t word) {
    return {word >> 25, static_cast<std::uint32_t>(word >> 17 & 0xff), static_cast<std::uint32_t>(word >> 2 & 0x7fff),
            (word & 2) != 0, (word & 1) != 0};
  }
  std::uint64_t word() const {
    return (version & kVersions) << 25 | std::uint64_t{waiting} << 17 | std::uint64_t{last} << 2 | (locked ? 2u : 0u) |
           (open ? 1u : 0u);
  }
};

struct QuickEntry {
  SharedWord place;  // place_word() of the memory offered; by the node
  SharedWord link;   // QuickRef of the put before this one that had not been taken in; 0: none
  SharedWord id[2];
  std::uint64_t digest[2];
  std::uint64_t bytes;
  std::uint64_t expires_ms;  // kNeverExpires: never
  std::uint64_t parent[2];
  std::uint32_t depth;
  std::uint16_t key_bytes, tenant_bytes;
  char text[kQuickTextBytes];  // key, then tenant
};
static_assert(sizeof(QuickEntry) == 512);

struct QuickPage {
  SharedWord state[kQuickEntries];  // quick_state()
  QuickEntry entries[kQuickEntries];
};
static_assert(sizeof(QuickPage) == 33280);

enum class QuickUse : std::uint8_t { kNone = 0, kOffered = 1, kTaken = 2 };
// Who may write to an entry and its memory: nobody; whoever takes it; the client.
constexpr std::uint64_t quick_state(std::uint64_t room, QuickUse use) {
  return room << 2 | static_cast<std::uint64_t>(use);
}

// An entry of a page, as lists name it. 0: none.
constexpr std::uint32_t quick_ref(std::uint32_t page, std::uint32_t entry) { return page * kQuickEntries + entry + 1; }

inline constexpr std::uint64_t kQuickDoorBytes = 4096;  // the door has a page of memory to itself
inline constexpr std::uint64_t kPinsBytes = std::uint64_t{LocalStore::kMaxClients} * sizeof(PinPage);
inline constexpr std::uint64_t kQuickBytes =
    kQuickDoorBytes + std::uint64_t{LocalStore::kMaxClients} * sizeof(QuickPage);

struct QuickMemory {
  SharedWord* door = nullptr;
  std::span<QuickPage> pages;

  // Of all that clients map beside index and arenas. Nothing if the node has no quick puts.
  static QuickMemory of(std::span<std::byte> pins) {
    if (pins.size() < kPinsBytes + kQuickBytes) return {};
    std::byte* const start = pins.data() + kPinsBytes;
    return {reinterpret_cast<SharedWord*>(start),
            {reinterpret_cast<QuickPage*>(start + kQuickDoorBytes), LocalStore::kMaxClients}};
  }
  QuickEntry& entry(std::uint32_t ref) const {
    return pages[(ref - 1) / kQuickEntries].entries[(ref - 1) % kQuickEntries];
  }
};
static_assert(LocalStore::kMaxClients * kQuickEntries < 1u << 15 && kQuickWaiting < 1u << 8);

}  // namespace kvferry::store
