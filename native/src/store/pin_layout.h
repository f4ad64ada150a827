// The memory in which clients of a host say what they read in place, a page of it for each: docs/store-node.md, "Pins",
// byte by byte. A page is written by its client, but for `fenced`; the node reads it, and clears it when the client has
// gone.
#pragma once

#include <atomic>
#include <cstdint>

#include "store/index_layout.h"

namespace kvferry::store {

inline constexpr std::uint32_t kPinEntries = 4096;  // pins that one client can hold at once
inline constexpr std::uint32_t kAccessNotes = 4080;

struct PinPage {
  std::atomic<std::uint32_t> high_water;  // entries from here on were never used
  std::atomic<std::uint32_t> notes;       // how many were written, without end
  // How many threads of the client write to memory that a session of it reserved; of session s in writing[s % 4].
  SharedWord writing[4];
  SharedWord fenced;  // by the node: what sessions up to this one reserved must not be written to any more
  std::uint64_t unused[2];
  SharedWord entries[kPinEntries];                    // pin_word(); 0: none
  std::atomic<std::uint32_t> accessed[kAccessNotes];  // ring: a slot + 1 that was used; a note may be lost
};
static_assert(sizeof(PinPage) == 48u << 10);

}  // namespace kvferry::store
