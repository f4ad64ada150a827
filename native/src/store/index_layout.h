// What the index of a node's objects looks like in shared memory: docs/store-node.md, "The index", byte by byte. The
// node writes it, clients on its host map it to read.
//
// There is no moment at which the index is not in order, so that a node that stopped or died in the middle of a change
// keeps nobody waiting: every change is one store of one word that readers look at (a bucket's head, a slot's state or
// its successor), after all that the word leads to has been written. What a reader must notice instead is that the slot
// it stands on began another life:
//   - the state of a slot changes, and its generation with it, before any other word of the slot does;
//   - `changes` of a bucket grows after a slot left its chain and before the slot is written again.
// All words are written with release and read with acquire: whoever sees a word of a slot's next life also sees these.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kvferry/object_id.h"
#include "kvferry/store.h"
#include "store/local_store.h"

namespace kvferry::store {

using SharedWord = std::atomic<std::uint64_t>;
static_assert(SharedWord::is_always_lock_free && sizeof(SharedWord) == 8, "shared words must not need a lock");

inline constexpr std::uint64_t kIndexMagic = 0x325844494656'4BULL;  // "KVFIDX2" in memory order
inline constexpr std::uint32_t kMaxPlaces = 8;                      // runs of memory of one object
inline constexpr std::uint64_t kNeverExpires = (1ull << 48) - 1;
inline constexpr std::uint64_t kMaxObjectBytes = (1ull << 48) - 1;

struct IndexHeader {
  SharedWord magic;
  SharedWord node[2];
  SharedWord slots;          // how many there are
  SharedWord buckets;        // a power of two
  SharedWord scattered;      // how many lists of places there are
  SharedWord trusted_until;  // what is here may be believed until then, by monotonic_ms(); 0: always
  SharedWord unused;
};
static_assert(sizeof(IndexHeader) == 64);

struct IndexBucket {
  std::atomic<std::uint32_t> changes;
  std::atomic<std::uint32_t> head;  // a slot + 1; 0: none
};
static_assert(sizeof(IndexBucket) == 8);

struct IndexSlot {
  SharedWord state;  // SlotState
  SharedWord id[2];
  SharedWord digest[2];
  SharedWord bytes;  // length of the object, 48 bits; bits 32 to 47 of the time it expires
  SharedWord next;   // successor in the chain, a slot + 1, 32 bits; bits 0 to 31 of the time it expires
  SharedWord place;  // of an object in one place: place_word(); in several: its list
};
static_assert(sizeof(IndexSlot) == 64);

struct IndexPlaces {  // of an object in several places
  SharedWord place[kMaxPlaces];
  SharedWord length[kMaxPlaces];  // 0 after the last one
};
static_assert(sizeof(IndexPlaces) == 128);

struct SlotState {
  static constexpr std::uint8_t kHeld = 1;       // there is an object
  static constexpr std::uint8_t kOnSsd = 2;      // its bytes are not in memory
  static constexpr std::uint8_t kScattered = 4;  // in several places

  std::uint32_t generation = 0;  // another one after each change of the state
  std::uint8_t flags = 0;
  std::uint8_t replicas = 0;

  static SlotState of(std::uint64_t word) {
    return {static_cast<std::uint32_t>(word), static_cast<std::uint8_t>(word >> 32),
            static_cast<std::uint8_t>(word >> 40)};
  }
  std::uint64_t word() const { return generation | std::uint64_t{flags} << 32 | std::uint64_t{replicas} << 40; }
  bool held() const { return (flags & kHeld) != 0; }
  bool on_ssd() const { return (flags & kOnSsd) != 0; }
  bool scattered() const { return (flags & kScattered) != 0; }
};

inline std::uint64_t place_word(const Place& place) { return std::uint64_t{place.arena} << 48 | place.offset; }
inline Place place_of(std::uint64_t word, std::uint64_t length) {
  return {static_cast<std::uint32_t>(word >> 48), word & 0xffff'ffff'ffffULL, length};
}

// An object as pins name it: a slot and the generation that it had while the object was there. Never 0.
inline std::uint64_t pin_word(std::uint32_t slot, std::uint32_t generation) {
  return (std::uint64_t{slot} + 1) << 32 | generation;
}

// How many of everything there is: follows from the options, and from the header for clients.
struct IndexShape {
  std::uint64_t slots = 0;
  std::uint64_t buckets = 0;
  std::uint64_t scattered = 0;

  static IndexShape of(const NodeOptions& options);
  // How many objects that would be without the limit, and what to do if it, or its memory, is too much; for users.
  static Status check(const NodeOptions& options);
  static std::string advice(const NodeOptions& options);
  std::uint64_t buckets_at() const { return sizeof(IndexHeader); }
  std::uint64_t slots_at() const { return (buckets_at() + buckets * sizeof(IndexBucket) + 63) / 64 * 64; }
  std::uint64_t scattered_at() const { return slots_at() + slots * sizeof(IndexSlot); }
  std::uint64_t bytes() const { return scattered_at() + scattered * sizeof(IndexPlaces); }
  bool sane() const;
};

struct IndexView {  // where the parts lie in this process
  IndexShape shape;
  IndexHeader* header = nullptr;
  IndexBucket* buckets = nullptr;
  IndexSlot* slots = nullptr;
  IndexPlaces* scattered = nullptr;

  // `memory` holds shape.bytes(), at a multiple of 64. Readers never write through it.
  static IndexView of(const std::byte* memory, const IndexShape& shape);
  IndexBucket& bucket(const ObjectId& id) const { return buckets[id.hi & (shape.buckets - 1)]; }
};

std::uint64_t monotonic_ms();  // of CLOCK_MONOTONIC, the same for all processes of a host; up to 10 ms behind

}  // namespace kvferry::store
