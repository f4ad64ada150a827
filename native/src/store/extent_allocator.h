// Which bytes of one arena are free. Knows offsets only, touches no memory, keeps no record of what it gave out.
//
// From 4 KiB on a value takes whole pages (direct I/O needs them), from the end of the arena downwards, and
// from 2 MiB on it begins at a multiple of 2 MiB where such a place is free. Smaller ones take units of 64 bytes from
// the start of the arena upwards, many to a page. Nothing belongs to a size for ever: what is freed becomes one extent
// with its free neighbours, for values of any size. A value for which no extent is large enough is put into several.
//
// Free extents are a treap ordered by offset, each node knowing how much the best extent below it can hold: every step
// is O(log n), and a value goes into one extent if any can hold it. Not thread-safe; deterministic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "kvferry/status.h"

namespace kvferry::store {

struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;  // what is taken from the arena: the value's bytes rounded up

  std::uint64_t end() const { return offset + length; }
  bool operator==(const Extent&) const = default;
};

inline constexpr std::uint32_t kMaxExtents = 8;

// Where one value lies, in the order of its bytes. All extents but the last are full.
class ExtentList {
 public:
  const Extent* begin() const { return extents_.data(); }
  const Extent* end() const { return extents_.data() + count_; }
  std::uint32_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  const Extent& operator[](std::size_t i) const { return extents_[i]; }
  std::uint64_t length() const;
  void push_back(const Extent& extent) { extents_[count_++] = extent; }  // at most kMaxExtents

 private:
  std::array<Extent, kMaxExtents> extents_;
  std::uint32_t count_ = 0;
};

class ExtentAllocator {
 public:
  static constexpr std::uint64_t kUnit = 64;
  static constexpr std::uint64_t kPage = 4096;
  static constexpr std::uint64_t kHugePage = 2u << 20;

  // An arena of `length` bytes, all free; what exceeds a multiple of kUnit is never used.
  explicit ExtentAllocator(std::uint64_t length);

  // What a value of so many bytes takes from the arena.
  static std::uint64_t rounded(std::uint64_t bytes);

  // Nothing if the free bytes do not suffice or lie in too many pieces; no extents for a value of no bytes.
  std::optional<ExtentList> allocate(std::uint64_t bytes);
  // Gives back an extent as it was given out, or a part of it, in kUnits. kInvalidArgument if it leaves the arena,
  // is not in units, or is free in part: then nothing changes.
  Status free(const Extent& extent);

  std::uint64_t capacity() const { return capacity_; }
  std::uint64_t used() const { return capacity_ - free_; }
  std::uint64_t free_bytes() const { return free_; }
  // The longest value that allocate() would put into one extent.
  std::uint64_t largest_free() const;
  std::size_t free_extents() const { return count_; }
  std::uint64_t memory_bytes() const { return nodes_.size() * sizeof(Node); }

  // kInternal and what is wrong unless the free extents are in order, apart, known to their parents and add up.
  Status check() const;

 private:
  using Index = std::uint32_t;
  static constexpr Index kNone = UINT32_MAX;
  struct Room {  // what the best extents can hold
    std::uint32_t pages = 0;
    std::uint32_t units = 0;  // counted up to a page only: longer values take pages

    bool operator==(const Room&) const = default;
  };
  struct Node {  // one free extent
    Extent extent;
    Room room;  // of this extent and all below it in the tree
    Index left = kNone;
    Index right = kNone;  // next spare node while not in use
  };
  static_assert(sizeof(Node) == 32);
  struct Walk;  // what check() has seen so far

  static Room room_in(const Extent& extent);
  Room room(Index at) const { return at == kNone ? Room{} : nodes_[at].room; }
  Room best(const Node& node) const;
  static std::uint32_t priority(Index at);
  void pull(Index at);
  Index link(Index at, Index node);
  Index unlink(Index at, std::uint64_t offset);
  void split(Index at, std::uint64_t offset, Index& left, Index& right);
  Index merge(Index left, Index right);
  void resize(Index at, std::uint64_t offset, const Extent& now);

  void add(const Extent& extent);
  void remove(const Extent& extent);
  void take(const Extent& hole, const Extent& taken);
  Index before(std::uint64_t offset) const;       // the last extent that begins before it
  Index at_or_after(std::uint64_t offset) const;  // the first one that does not
  Index lowest(std::uint64_t units) const;
  Index highest(Index at, std::uint64_t pages, std::uint64_t below) const;
  std::optional<Extent> allocate_units(std::uint64_t length);
  std::optional<Extent> allocate_pages(std::uint64_t length);
  std::optional<Extent> allocate_huge(std::uint64_t length);
  std::optional<Extent> allocate_widest();
  Status check(Index at, Walk& walk) const;

  std::uint64_t capacity_;
  std::uint64_t free_;
  std::deque<Node> nodes_;  // never moves, never holds twice what it needs
  Index root_ = kNone;
  Index spare_ = kNone;
  std::size_t count_ = 0;
};

}  // namespace kvferry::store
