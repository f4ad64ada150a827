#include "engine/plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>

#include "engine/plan_builder.h"
#include "memory/address_range.h"
#include "memory/region_table.h"

namespace kvferry {
namespace {

std::string piece_text(std::size_t index, std::uint32_t region, const char* side) {
  return "piece " + std::to_string(index) + ": " + side + " region " + std::to_string(region);
}

Status range_error(std::size_t index, const char* side, const RegionInfo& region, std::uint64_t offset,
                   std::uint64_t length) {
  return {Code::kOutOfRange, piece_text(index, region.key.id, side) + " (" + region.name + ") has " +
                                 std::to_string(region.length) + " bytes, asked for offset " + std::to_string(offset) +
                                 " length " + std::to_string(length)};
}

// Finds regions by id; consecutive pieces mostly name the same one.
class RemoteRegions {
 public:
  explicit RemoteRegions(const std::vector<RegionInfo>& regions) : regions_(regions) {}

  const RegionInfo* find(std::uint32_t id) {
    if (last_ != nullptr && last_->key.id == id) return last_;
    auto it = std::lower_bound(regions_.begin(), regions_.end(), id,
                               [](const RegionInfo& region, std::uint32_t wanted) { return region.key.id < wanted; });
    last_ = it != regions_.end() && it->key.id == id ? &*it : nullptr;
    return last_;
  }

 private:
  const std::vector<RegionInfo>& regions_;
  const RegionInfo* last_ = nullptr;
};

class LocalRegions {
 public:
  struct Known {
    RegionInfo info;
    std::byte* data = nullptr;
  };
  explicit LocalRegions(const RegionTable& table) : table_(table) {}

  const Known* find(std::uint32_t id) {
    if (last_ < known_.size() && known_[last_].info.key.id == id) return &known_[last_];
    for (last_ = 0; last_ < known_.size(); ++last_) {
      if (known_[last_].info.key.id == id) return &known_[last_];
    }
    Result<RegionInfo> found = table_.find(id);
    if (!found.ok()) return nullptr;
    // Where a region of this generation lies never changes; submit() pins it before anything is moved.
    const Result<RegionTable::Pin> pin = table_.pin(found->key);
    if (!pin.ok()) return nullptr;
    known_.push_back({*std::move(found), pin->data()});
    return &known_[last_];
  }

 private:
  const RegionTable& table_;
  std::vector<Known> known_;
  std::size_t last_ = 0;
};

Status check_piece(std::size_t index, const Piece& piece, Op op, const RegionInfo* local, const RegionInfo* remote) {
  if (local == nullptr) {
    return {Code::kNotFound, piece_text(index, piece.local_region, "local") + " is not registered"};
  }
  if (remote == nullptr) {
    return {Code::kNotFound, piece_text(index, piece.remote_region, "remote") +
                                 " is not known of this peer; refresh() the peer if it was registered lately"};
  }
  if (!range_fits(piece.local_offset, piece.length, local->length)) {
    return range_error(index, "local", *local, piece.local_offset, piece.length);
  }
  if (!range_fits(piece.remote_offset, piece.length, remote->length)) {
    return range_error(index, "remote", *remote, piece.remote_offset, piece.length);
  }
  const std::uint8_t needed = op == Op::kRead ? kRemoteRead : kRemoteWrite;
  if ((remote->access & needed) == 0) {
    return {Code::kPermissionDenied, piece_text(index, piece.remote_region, "remote") + " (" + remote->name +
                                         ") does not allow peers to " + (op == Op::kRead ? "read" : "write")};
  }
  return {};
}

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

Result<std::shared_ptr<const PlanImpl>> PlanImpl::build(std::shared_ptr<PeerImpl> peer, const RegionTable& local,
                                                        const std::vector<RegionInfo>& remote,
                                                        std::span<const Piece> pieces, Op op, const SliceShape& shape) {
  if (pieces.size() >= std::numeric_limits<std::uint32_t>::max()) {
    return {Code::kInvalidArgument, "a plan holds fewer than 2^32 pieces"};
  }
  LocalRegions local_regions(local);
  RemoteRegions remote_regions(remote);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const LocalRegions::Known* near = local_regions.find(pieces[i].local_region);
    const RegionInfo* far = remote_regions.find(pieces[i].remote_region);
    KVF_RETURN_IF_ERROR(check_piece(i, pieces[i], op, near == nullptr ? nullptr : &near->info, far));
    bytes += pieces[i].length;
  }
  std::vector<std::uint32_t> order = order_by_remote_place(pieces);
  PlanBuilder builder(std::move(peer), op, bytes, pieces.size(), shape);
  for (std::size_t place = 0; place < pieces.size(); ++place) {
    const Piece& piece = pieces[order.empty() ? place : order[place]];
    const LocalRegions::Known* near = local_regions.find(piece.local_region);
    builder.use_local_region(near->info.key);
    builder.add(near->data + piece.local_offset, remote_regions.find(piece.remote_region)->key, piece.remote_offset,
                piece.length);
  }
  return builder.finish(std::move(order));
}

}  // namespace kvferry
