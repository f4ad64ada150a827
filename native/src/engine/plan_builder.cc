#include "engine/plan_builder.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace kvferry {
namespace {

constexpr std::uint32_t kMaxRunsPerSlice = 1024;
constexpr std::uint64_t kLeastSliceBytes = 256u << 10;  // whatever the options say
constexpr std::uint64_t kCutAlignment = 4096;  // long pieces are cut at multiples of it, as direct file I/O likes it

std::uint64_t reserve_lists(std::size_t count) {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(count, std::memory_order_relaxed);
}

}  // namespace

PlanBuilder::PlanBuilder(std::shared_ptr<PlanTarget> peer, Op op, std::uint64_t bytes, std::size_t pieces,
                         const SliceShape& shape)
    : slice_bytes_(std::max(shape.slice_bytes, kLeastSliceBytes)),
      min_bytes_(std::min(shape.min_bytes, slice_bytes_)),
      lanes_(std::max<std::size_t>(shape.lanes, 1)),
      plan_(new PlanImpl),
      uncut_(bytes) {
  plan_->peer_ = std::move(peer);
  plan_->op_ = op;
  plan_->bytes_ = bytes;
  plan_->pieces_ = pieces;
  plan_->runs_.reserve(pieces);
  plan_->run_pieces_.reserve(pieces);
  open_slice();
}

void PlanBuilder::open_slice() {
  slice_ = PlanSlice{0, static_cast<std::uint32_t>(plan_->runs_.size()), 0, 0};
  limit_ = slice_bytes_;
  if (lanes_ > 1) limit_ = std::clamp(uncut_ / lanes_, min_bytes_, slice_bytes_);
}

void PlanBuilder::close_slice() {
  slice_.run_count = static_cast<std::uint32_t>(plan_->runs_.size()) - slice_.first_run;
  plan_->slices_.push_back(slice_);
  open_slice();
}

void PlanBuilder::use_local_region(RegionKey key) {
  if (key == region_) return;
  region_ = key;
  fresh_region_ = true;
  std::vector<RegionKey>& known = plan_->local_regions_;
  if (std::find(known.rbegin(), known.rend(), key) == known.rend()) known.push_back(key);
}

bool PlanBuilder::adjoins(const std::byte* local, RegionKey remote, std::uint64_t remote_offset) const {
  if (fresh_region_ || plan_->runs_.empty()) return false;
  const RunOp& last = plan_->runs_.back();
  return last.local + last.length == local && last.remote == remote &&
         last.remote_offset + last.length == remote_offset;
}

void PlanBuilder::append(std::byte* local, RegionKey remote, std::uint64_t remote_offset, std::uint64_t length,
                         bool joins) {
  if (joins && plan_->runs_.size() > slice_.first_run) {
    plan_->runs_.back().length += length;
    PlanPieces& range = plan_->run_pieces_.back();
    range.count = place_ - range.first + 1;
  } else {
    plan_->runs_.push_back({local, remote, remote_offset, length});
    plan_->run_pieces_.push_back({place_, 1});
  }
  slice_.bytes += length;
  uncut_ -= length;
}

void PlanBuilder::add(std::byte* local, RegionKey remote, std::uint64_t remote_offset, std::uint64_t length) {
  bool joins = adjoins(local, remote, remote_offset);
  if (!joins) ++plan_->merged_runs_;
  if (length == 0) {  // moves nothing: its region is still fresh for the next piece
    ++place_;
    return;
  }
  while (length > 0) {
    std::uint64_t room = limit_ - std::min(limit_, slice_.bytes);
    const bool full = !joins && plan_->runs_.size() - slice_.first_run >= kMaxRunsPerSlice;
    // Pieces that fit into a slice stay whole; only those that never would are cut.
    if (length > room && length > limit_) room -= room % kCutAlignment;
    if (slice_.bytes > 0 && (full || room == 0 || (length > room && length <= limit_))) {
      close_slice();
      continue;
    }
    const std::uint64_t take = std::min(length, room);
    append(local, remote, remote_offset, take, joins);
    local += take;
    remote_offset += take;
    length -= take;
    joins = true;
  }
  fresh_region_ = false;
  ++place_;
}

std::shared_ptr<const PlanImpl> PlanBuilder::finish(std::vector<std::uint32_t> order) {
  if (slice_.bytes > 0 || plan_->slices_.empty()) close_slice();
  std::uint64_t list = reserve_lists(plan_->slices_.size());
  for (PlanSlice& slice : plan_->slices_) slice.list = list++;
  plan_->order_ = std::move(order);
  return std::move(plan_);
}

}  // namespace kvferry
