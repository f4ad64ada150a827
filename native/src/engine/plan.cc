#include "engine/plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>

#include "memory/address_range.h"

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
  explicit LocalRegions(const RegionTable& table) : table_(table) {}

  const RegionInfo* find(std::uint32_t id) {
    if (last_ < known_.size() && known_[last_].key.id == id) return &known_[last_];
    for (last_ = 0; last_ < known_.size(); ++last_) {
      if (known_[last_].key.id == id) return &known_[last_];
    }
    Result<RegionInfo> found = table_.find(id);
    if (!found.ok()) return nullptr;
    known_.push_back(*std::move(found));
    return &known_[last_];
  }

 private:
  const RegionTable& table_;
  std::vector<RegionInfo> known_;
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

}  // namespace

Result<std::shared_ptr<const PlanImpl>> PlanImpl::build(std::shared_ptr<PeerImpl> peer, const RegionTable& local,
                                                        const std::vector<RegionInfo>& remote,
                                                        std::span<const Piece> pieces, Op op) {
  if (pieces.size() >= std::numeric_limits<std::uint32_t>::max()) {
    return {Code::kInvalidArgument, "a plan holds fewer than 2^32 pieces"};
  }
  LocalRegions local_regions(local);
  RemoteRegions remote_regions(remote);
  std::vector<RegionKey> local_keys(pieces.size()), remote_keys(pieces.size());
  std::shared_ptr<PlanImpl> plan(new PlanImpl);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const RegionInfo* near = local_regions.find(pieces[i].local_region);
    const RegionInfo* far = remote_regions.find(pieces[i].remote_region);
    KVF_RETURN_IF_ERROR(check_piece(i, pieces[i], op, near, far));
    local_keys[i] = near->key;
    remote_keys[i] = far->key;
    plan->bytes_ += pieces[i].length;
  }
  plan->peer_ = std::move(peer);
  plan->op_ = op;
  plan->merge(pieces, local_keys, remote_keys);
  return std::shared_ptr<const PlanImpl>(std::move(plan));
}

std::uint32_t PlanImpl::local_index(RegionKey key) {
  auto it = std::find(local_regions_.rbegin(), local_regions_.rend(), key);
  if (it != local_regions_.rend()) return static_cast<std::uint32_t>(local_regions_.rend() - it - 1);
  local_regions_.push_back(key);
  return static_cast<std::uint32_t>(local_regions_.size() - 1);
}

// Sorts by place in the peer's memory, so that neighbours there (and here) become one run.
void PlanImpl::merge(std::span<const Piece> pieces, const std::vector<RegionKey>& local_keys,
                     const std::vector<RegionKey>& remote_keys) {
  order_.resize(pieces.size());
  std::iota(order_.begin(), order_.end(), 0u);
  auto before = [&](std::uint32_t a, std::uint32_t b) {
    const Piece &x = pieces[a], &y = pieces[b];
    return std::tie(x.remote_region, x.remote_offset, x.local_region, x.local_offset) <
           std::tie(y.remote_region, y.remote_offset, y.local_region, y.local_offset);
  };
  if (!std::is_sorted(order_.begin(), order_.end(), before)) std::sort(order_.begin(), order_.end(), before);

  runs_.reserve(pieces.size());
  RegionKey last_local;
  for (std::uint32_t place = 0; place < order_.size(); ++place) {
    const std::uint32_t i = order_[place];
    const Piece& piece = pieces[i];
    if (!runs_.empty()) {
      PlanRun& run = runs_.back();
      const bool adjoins = last_local == local_keys[i] && run.remote == remote_keys[i] &&
                           run.local_offset + run.length == piece.local_offset &&
                           run.remote_offset + run.length == piece.remote_offset;
      if (adjoins) {
        run.length += piece.length;
        ++run.piece_count;
        continue;
      }
    }
    last_local = local_keys[i];
    runs_.push_back(
        {local_index(last_local), place, 1, remote_keys[i], piece.local_offset, piece.remote_offset, piece.length});
  }
}

}  // namespace kvferry
