#include "engine/plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "engine/plan_builder.h"
#include "engine/plan_regions.h"
#include "memory/address_range.h"

namespace kvferry {
namespace {

// By place in the peer's memory, so that neighbours there (and here) become one run. Empty if they lie so already.
std::vector<std::uint32_t> order_by_remote_place(std::span<const Piece> pieces) {
  auto place = [](const Piece& piece) {
    return std::tie(piece.remote_region, piece.remote_offset, piece.local_region, piece.local_offset);
  };
  auto before = [&](const Piece& a, const Piece& b) { return place(a) < place(b); };
  if (std::is_sorted(pieces.begin(), pieces.end(), before)) return {};
  std::vector<std::uint32_t> order(pieces.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return before(pieces[a], pieces[b]); });
  return order;
}

}  // namespace

Status PlanImpl::check_piece_count(std::uint64_t pieces) {
  if (pieces < std::numeric_limits<std::uint32_t>::max()) return {};
  return {Code::kInvalidArgument, "a plan holds fewer than 2^32 - 1 pieces"};
}

Status PlanImpl::add_bytes(std::uint64_t* sum, std::uint64_t each, std::uint64_t count) {
  std::uint64_t more = 0;
  if (__builtin_mul_overflow(each, count, &more) || __builtin_add_overflow(*sum, more, sum)) {
    return {Code::kInvalidArgument, "the pieces of a plan add up to more than 2^64 bytes"};
  }
  return {};
}

Result<std::shared_ptr<const PlanImpl>> PlanImpl::build(const Target& target, std::span<const Piece> pieces, Op op) {
  KVF_RETURN_IF_ERROR(check_piece_count(pieces.size()));
  PlanRegions regions("piece", target.local, target.remote, op);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const PlanRegions::Local* near = regions.local(piece.local_region);
    const RegionInfo* far = regions.remote(piece.remote_region);
    KVF_RETURN_IF_ERROR(regions.check(i, piece.local_region, near, piece.remote_region, far));
    if (!range_fits(piece.local_offset, piece.length, near->info.length)) {
      return regions.out_of_range(i, "local", near->info, piece.local_offset, piece.length);
    }
    if (!range_fits(piece.remote_offset, piece.length, far->length)) {
      return regions.out_of_range(i, "remote", *far, piece.remote_offset, piece.length);
    }
    KVF_RETURN_IF_ERROR(add_bytes(&bytes, piece.length, 1));
  }
  std::vector<std::uint32_t> order = order_by_remote_place(pieces);
  PlanBuilder builder(target.peer, op, bytes, pieces.size(), target.shape);
  for (std::size_t place = 0; place < pieces.size(); ++place) {
    const Piece& piece = pieces[order.empty() ? place : order[place]];
    const PlanRegions::Local* near = regions.local(piece.local_region);
    builder.use_local_region(near->info.key);
    builder.add(near->data + piece.local_offset, regions.remote(piece.remote_region)->key, piece.remote_offset,
                piece.length);
  }
  return builder.finish(std::move(order));
}

}  // namespace kvferry
