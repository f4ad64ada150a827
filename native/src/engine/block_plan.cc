// Plans of blocks that are named by index.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "engine/plan.h"
#include "engine/plan_builder.h"
#include "engine/plan_regions.h"
#include "memory/address_range.h"

namespace kvferry {
namespace {

constexpr std::uint64_t kMaxBlocks = std::uint64_t{1} << 31;

struct ListPair {  // checked
  PlanRegions::Local near;
  RegionKey far;
  const BlockList* local;
  const BlockList* remote;
};

Status check_shape(const BlockPairs& blocks) {
  if (blocks.local.size() != blocks.remote.size()) {
    return {Code::kInvalidArgument, std::to_string(blocks.local.size()) + " local and " +
                                        std::to_string(blocks.remote.size()) + " remote block lists: give pairs"};
  }
  if (blocks.local_index.size() != blocks.remote_index.size()) {
    return {Code::kInvalidArgument, std::to_string(blocks.local_index.size()) + " local and " +
                                        std::to_string(blocks.remote_index.size()) + " remote indices: give pairs"};
  }
  return {};
}

// How many bytes the list spans, from its offset. Not OK: the list is none.
Result<std::uint64_t> span_of(std::size_t index, const char* side, const BlockList& list) {
  const auto refuse = [&](const std::string& why) {
    return Status{Code::kInvalidArgument, "block list " + std::to_string(index) + ": " + side + " " + why};
  };
  if (list.count > kMaxBlocks) return refuse("count is over 2^31");
  if (list.count == 0) return std::uint64_t{0};
  if (list.count > 1 && list.stride_bytes < list.block_bytes) return refuse("blocks overlap: stride under block size");
  std::uint64_t span = 0;
  if (__builtin_mul_overflow(list.count - 1, list.stride_bytes, &span) ||
      __builtin_add_overflow(span, list.block_bytes, &span)) {
    return refuse("blocks span more than 2^64 bytes");
  }
  return span;
}

Result<ListPair> check_pair(PlanRegions& regions, std::size_t index, const BlockList& local, const BlockList& remote) {
  const PlanRegions::Local* near = regions.local(local.region);
  const RegionInfo* far = regions.remote(remote.region);
  KVF_RETURN_IF_ERROR(regions.check(index, local.region, near, remote.region, far));
  KVF_ASSIGN_OR_RETURN(const std::uint64_t near_span, span_of(index, "local", local));
  KVF_ASSIGN_OR_RETURN(const std::uint64_t far_span, span_of(index, "remote", remote));
  if (local.block_bytes != remote.block_bytes) {
    return {Code::kInvalidArgument, "block list " + std::to_string(index) + ": local blocks have " +
                                        std::to_string(local.block_bytes) + " bytes, remote ones " +
                                        std::to_string(remote.block_bytes)};
  }
  if (!range_fits(local.offset, near_span, near->info.length)) {
    return regions.out_of_range(index, "local", near->info, local.offset, near_span);
  }
  if (!range_fits(remote.offset, far_span, far->length)) {
    return regions.out_of_range(index, "remote", *far, remote.offset, far_span);
  }
  return ListPair{*near, far->key, &local, &remote};
}

Status check_indices(std::span<const std::int32_t> indices, std::span<const BlockList> lists, const char* side) {
  std::uint64_t count = kMaxBlocks;
  for (const BlockList& list : lists) count = std::min(count, list.count);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] >= 0 && static_cast<std::uint64_t>(indices[i]) < count) continue;
    return {Code::kOutOfRange, std::string(side) + " index " + std::to_string(i) + " is " + std::to_string(indices[i]) +
                                   ", the lists have " + std::to_string(count) + " blocks"};
  }
  return {};
}

// The places of `indices` in ascending order of what they hold; empty if they are in order.
std::vector<std::uint32_t> ascending(std::span<const std::int32_t> indices) {
  if (std::is_sorted(indices.begin(), indices.end())) return {};
  std::vector<std::uint64_t> keyed(indices.size());  // index and place in one word: sorts without looking elsewhere
  for (std::size_t i = 0; i < indices.size(); ++i) keyed[i] = static_cast<std::uint64_t>(indices[i]) << 32 | i;
  std::sort(keyed.begin(), keyed.end());
  std::vector<std::uint32_t> places(indices.size());
  for (std::size_t i = 0; i < indices.size(); ++i) places[i] = static_cast<std::uint32_t>(keyed[i]);
  return places;
}

void add_pair(PlanBuilder& builder, const ListPair& pair, const BlockPairs& blocks,
              const std::vector<std::uint32_t>& places) {
  builder.use_local_region(pair.near.info.key);
  std::byte* const near = pair.near.data + pair.local->offset;
  for (std::size_t i = 0; i < blocks.local_index.size(); ++i) {
    const std::size_t place = places.empty() ? i : places[i];
    const auto local = static_cast<std::uint64_t>(blocks.local_index[place]);
    const auto remote = static_cast<std::uint64_t>(blocks.remote_index[place]);
    builder.add(near + local * pair.local->stride_bytes, pair.far,
                pair.remote->offset + remote * pair.remote->stride_bytes, pair.local->block_bytes);
  }
}

}  // namespace

Result<std::shared_ptr<const PlanImpl>> PlanImpl::build_blocks(const Target& target, const BlockPairs& blocks, Op op) {
  KVF_RETURN_IF_ERROR(check_shape(blocks));
  const std::size_t per_list = blocks.local_index.size();
  const std::uint64_t pieces = std::uint64_t{blocks.local.size()} * per_list;
  KVF_RETURN_IF_ERROR(check_piece_count(pieces));
  PlanRegions regions("block list", target.local, target.remote, op);
  std::vector<ListPair> pairs;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < blocks.local.size(); ++i) {
    KVF_ASSIGN_OR_RETURN(ListPair pair, check_pair(regions, i, blocks.local[i], blocks.remote[i]));
    KVF_RETURN_IF_ERROR(add_bytes(&bytes, pair.local->block_bytes, per_list));
    pairs.push_back(std::move(pair));
  }
  KVF_RETURN_IF_ERROR(check_indices(blocks.local_index, blocks.local, "local"));
  KVF_RETURN_IF_ERROR(check_indices(blocks.remote_index, blocks.remote, "remote"));

  const std::vector<std::uint32_t> places = ascending(blocks.remote_index);
  PlanBuilder builder(target.peer, op, bytes, pieces, target.shape);
  std::vector<std::uint32_t> order;
  order.reserve(places.empty() ? 0 : pieces);
  for (std::size_t list = 0; list < pairs.size(); ++list) {
    add_pair(builder, pairs[list], blocks, places);
    for (const std::uint32_t place : places) order.push_back(static_cast<std::uint32_t>(list * per_list) + place);
  }
  return builder.finish(std::move(order));
}

}  // namespace kvferry
