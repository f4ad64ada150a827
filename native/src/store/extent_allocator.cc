#include "store/extent_allocator.h"

#include <algorithm>
#include <string>

namespace kvferry::store {
namespace {

constexpr int kAlignedTries = 4;  // extents that are long enough but may have no aligned place

constexpr std::uint64_t align_down(std::uint64_t value, std::uint64_t alignment) { return value & ~(alignment - 1); }
constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return align_down(value + alignment - 1, alignment);
}

// The highest aligned place in `hole`.
std::optional<Extent> place(const Extent& hole, std::uint64_t length, std::uint64_t alignment) {
  if (hole.length < length) return std::nullopt;
  const std::uint64_t offset = align_down(hole.end() - length, alignment);
  if (offset < hole.offset) return std::nullopt;
  return Extent{offset, length};
}

std::string text(const Extent& extent) {
  return std::to_string(extent.length) + " bytes at " + std::to_string(extent.offset);
}

}  // namespace

std::uint64_t ExtentList::length() const {
  std::uint64_t sum = 0;
  for (const Extent& extent : *this) sum += extent.length;
  return sum;
}

ExtentAllocator::ExtentAllocator(std::uint64_t length) : capacity_(align_down(length, kUnit)), free_(0) {
  if (capacity_ > 0) add({0, capacity_});
}

std::uint64_t ExtentAllocator::rounded(std::uint64_t bytes) {
  const std::uint64_t granule = bytes < kPage ? kUnit : kPage;
  return bytes > UINT64_MAX - granule ? align_down(UINT64_MAX, granule) : align_up(bytes, granule);
}

std::uint64_t ExtentAllocator::largest_free() const {
  const Room most = room(root_);
  return most.pages > 0 ? most.pages * kPage : most.units * kUnit;
}

std::optional<ExtentList> ExtentAllocator::allocate(std::uint64_t bytes) {
  std::uint64_t remaining = rounded(bytes);
  if (remaining > free_) return std::nullopt;
  ExtentList list;
  while (remaining > 0) {
    std::optional<Extent> extent = bytes < kPage ? allocate_units(remaining) : allocate_pages(remaining);
    if (!extent && bytes >= kPage && list.size() + 1 < kMaxExtents) extent = allocate_widest();
    if (!extent) {
      for (const Extent& taken : list) add(taken);
      return std::nullopt;
    }
    list.push_back(*extent);
    remaining -= extent->length;
  }
  return list;
}

Status ExtentAllocator::free(const Extent& extent) {
  if (extent.offset % kUnit != 0 || extent.length % kUnit != 0 || extent.length == 0) {
    return {Code::kInvalidArgument, text(extent) + " are not in units of 64 bytes"};
  }
  if (extent.length > capacity_ || extent.offset > capacity_ - extent.length) {
    return {Code::kInvalidArgument, text(extent) + " leave the arena of " + std::to_string(capacity_)};
  }
  const Index previous = before(extent.end());
  if (previous != kNone && nodes_[previous].extent.end() > extent.offset) {
    return {Code::kInvalidArgument, text(extent) + " are free already, in part: " + text(nodes_[previous].extent)};
  }
  add(extent);
  return {};
}

std::optional<Extent> ExtentAllocator::allocate_units(std::uint64_t length) {
  if (length / kUnit > room(root_).units) return std::nullopt;
  const Extent hole = nodes_[lowest(length / kUnit)].extent;
  const Extent found{hole.offset, length};
  take(hole, found);
  return found;
}

std::optional<Extent> ExtentAllocator::allocate_pages(std::uint64_t length) {
  if (length >= kHugePage) {
    if (const auto found = allocate_huge(length)) return found;
  }
  const Index at = highest(root_, length / kPage, UINT64_MAX);
  if (at == kNone) return std::nullopt;
  const Extent hole = nodes_[at].extent;
  const Extent found = *place(hole, length, kPage);
  take(hole, found);
  return found;
}

// All extents that are long enough may have to be looked at; the first few will do, and then one that is so long that
// it must have a place.
std::optional<Extent> ExtentAllocator::allocate_huge(std::uint64_t length) {
  const std::uint64_t pages = length / kPage;
  Index at = highest(root_, pages, UINT64_MAX);
  for (int tries = 0; at != kNone && tries <= kAlignedTries; ++tries) {
    const Extent hole = nodes_[at].extent;
    if (const auto found = place(hole, length, kHugePage)) {
      take(hole, *found);
      return found;
    }
    const bool last = tries + 1 == kAlignedTries;
    at = last ? highest(root_, pages + kHugePage / kPage - 1, UINT64_MAX) : highest(root_, pages, hole.offset);
  }
  return std::nullopt;
}

// All whole pages of the extent that has most of them.
std::optional<Extent> ExtentAllocator::allocate_widest() {
  const std::uint64_t pages = room(root_).pages;
  return pages == 0 ? std::nullopt : allocate_pages(pages * kPage);
}

// Makes it free, and one extent with its neighbours.
void ExtentAllocator::add(const Extent& extent) {
  free_ += extent.length;
  Extent whole = extent;
  const Index next = at_or_after(extent.end());
  if (next != kNone && nodes_[next].extent.offset == extent.end()) {
    whole.length += nodes_[next].extent.length;
    remove(Extent(nodes_[next].extent));
  }
  const Index previous = before(extent.offset);
  if (previous != kNone && nodes_[previous].extent.end() == extent.offset) {
    const std::uint64_t offset = nodes_[previous].extent.offset;
    resize(root_, offset, {offset, whole.end() - offset});
    return;
  }
  Index node = spare_;
  if (node == kNone) {
    node = static_cast<Index>(nodes_.size());
    nodes_.emplace_back();
  } else {
    spare_ = nodes_[node].right;
  }
  nodes_[node] = Node{whole, room_in(whole), kNone, kNone};
  root_ = link(root_, node);
  ++count_;
}

void ExtentAllocator::remove(const Extent& extent) {
  root_ = unlink(root_, extent.offset);
  --count_;
}

void ExtentAllocator::take(const Extent& hole, const Extent& taken) {
  free_ -= taken.length;
  const Extent front{hole.offset, taken.offset - hole.offset};
  const Extent back{taken.end(), hole.end() - taken.end()};
  if (front.length == 0 && back.length == 0) return remove(hole);
  resize(root_, hole.offset, front.length > 0 ? front : back);
  if (front.length == 0 || back.length == 0) return;
  free_ -= back.length;  // add() counts it
  add(back);
}

ExtentAllocator::Index ExtentAllocator::before(std::uint64_t offset) const {
  Index found = kNone;
  for (Index at = root_; at != kNone;) {
    const Node& node = nodes_[at];
    if (node.extent.offset < offset) found = at;
    at = node.extent.offset < offset ? node.right : node.left;
  }
  return found;
}

ExtentAllocator::Index ExtentAllocator::at_or_after(std::uint64_t offset) const {
  Index found = kNone;
  for (Index at = root_; at != kNone;) {
    const Node& node = nodes_[at];
    if (node.extent.offset >= offset) found = at;
    at = node.extent.offset >= offset ? node.left : node.right;
  }
  return found;
}

// Only for a length that some extent has.
ExtentAllocator::Index ExtentAllocator::lowest(std::uint64_t units) const {
  Index at = root_;
  while (true) {
    const Node& node = nodes_[at];
    if (room(node.left).units >= units) {
      at = node.left;
    } else if (room_in(node.extent).units >= units) {
      return at;
    } else {
      at = node.right;
    }
  }
}

// Goes back up only along the path to `below`: a subtree that lies before it and has the room has a result.
ExtentAllocator::Index ExtentAllocator::highest(Index at, std::uint64_t pages, std::uint64_t below) const {
  if (at == kNone || room(at).pages < pages) return kNone;
  const Node& node = nodes_[at];
  if (node.extent.offset >= below) return highest(node.left, pages, below);
  const Index found = highest(node.right, pages, below);
  if (found != kNone) return found;
  return room_in(node.extent).pages >= pages ? at : highest(node.left, pages, below);
}

// A fixed mixture of the index: spread well enough to keep the tree flat, and the same in every run.
std::uint32_t ExtentAllocator::priority(Index at) {
  std::uint32_t x = (at + 1) * 0x9E3779B1u;
  x = (x ^ (x >> 15)) * 0x85EBCA77u;
  return x ^ (x >> 13);
}

ExtentAllocator::Room ExtentAllocator::room_in(const Extent& extent) {
  const std::uint64_t first = align_up(extent.offset, kPage);
  const std::uint64_t end = align_down(extent.end(), kPage);
  return {static_cast<std::uint32_t>(end > first ? (end - first) / kPage : 0),
          static_cast<std::uint32_t>(std::min(extent.length, kPage) / kUnit)};
}

ExtentAllocator::Room ExtentAllocator::best(const Node& node) const {
  const Room own = room_in(node.extent);
  const Room left = room(node.left);
  const Room right = room(node.right);
  return {std::max({own.pages, left.pages, right.pages}), std::max({own.units, left.units, right.units})};
}

void ExtentAllocator::pull(Index at) { nodes_[at].room = best(nodes_[at]); }

ExtentAllocator::Index ExtentAllocator::link(Index at, Index node) {
  if (at == kNone) return node;
  const std::uint64_t offset = nodes_[node].extent.offset;
  if (priority(node) > priority(at)) {
    split(at, offset, nodes_[node].left, nodes_[node].right);
    pull(node);
    return node;
  }
  Index& child = offset < nodes_[at].extent.offset ? nodes_[at].left : nodes_[at].right;
  child = link(child, node);
  pull(at);
  return at;
}

ExtentAllocator::Index ExtentAllocator::unlink(Index at, std::uint64_t offset) {
  Node& node = nodes_[at];
  if (node.extent.offset == offset) {
    const Index rest = merge(node.left, node.right);
    node.right = spare_;
    spare_ = at;
    return rest;
  }
  Index& child = offset < node.extent.offset ? node.left : node.right;
  child = unlink(child, offset);
  pull(at);
  return at;
}

void ExtentAllocator::split(Index at, std::uint64_t offset, Index& left, Index& right) {
  if (at == kNone) {
    left = right = kNone;
    return;
  }
  if (nodes_[at].extent.offset < offset) {
    left = at;
    split(nodes_[at].right, offset, nodes_[at].right, right);
  } else {
    right = at;
    split(nodes_[at].left, offset, left, nodes_[at].left);
  }
  pull(at);
}

ExtentAllocator::Index ExtentAllocator::merge(Index left, Index right) {
  if (left == kNone) return right;
  if (right == kNone) return left;
  const bool left_on_top = priority(left) > priority(right);
  const Index top = left_on_top ? left : right;
  if (left_on_top) {
    nodes_[left].right = merge(nodes_[left].right, right);
  } else {
    nodes_[right].left = merge(left, nodes_[right].left);
  }
  pull(top);
  return top;
}

// The extent at `offset` becomes `now`, which lies between the same neighbours.
void ExtentAllocator::resize(Index at, std::uint64_t offset, const Extent& now) {
  Node& node = nodes_[at];
  if (node.extent.offset == offset) {
    node.extent = now;
  } else {
    resize(offset < node.extent.offset ? node.left : node.right, offset, now);
  }
  pull(at);
}

struct ExtentAllocator::Walk {
  std::uint64_t end = 0;  // of the last extent
  std::uint64_t bytes = 0;
  std::size_t extents = 0;
};

Status ExtentAllocator::check() const {
  Walk walk;
  KVF_RETURN_IF_ERROR(check(root_, walk));
  if (walk.bytes != free_) return {Code::kInternal, "the free extents do not add up to the free bytes"};
  if (walk.extents != count_) return {Code::kInternal, "a free extent is lost"};
  if (walk.end > capacity_) return {Code::kInternal, "a free extent leaves the arena"};
  return {};
}

Status ExtentAllocator::check(Index at, Walk& walk) const {
  if (at == kNone) return {};
  const Node& node = nodes_[at];
  KVF_RETURN_IF_ERROR(check(node.left, walk));
  const Extent& extent = node.extent;
  if (extent.length == 0) return {Code::kInternal, "an empty extent: " + text(extent)};
  if (walk.extents > 0 && extent.offset <= walk.end) return {Code::kInternal, "not apart: " + text(extent)};
  walk = {extent.end(), walk.bytes + extent.length, walk.extents + 1};
  if (node.room != best(node)) return {Code::kInternal, "wrong about the room below " + text(extent)};
  for (const Index child : {node.left, node.right}) {
    if (child != kNone && priority(child) > priority(at)) return {Code::kInternal, "a child above its parent"};
  }
  return check(node.right, walk);
}

}  // namespace kvferry::store
