// A checked, merged list of runs to one peer, cut into slices. Immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvferry/engine.h"
#include "transport/transport.h"

namespace kvferry {

class PlanTarget;
class RegionTable;

struct PlanPieces {  // which pieces a run covers, wholly or in part: those at order[first, first + count)
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

struct PlanSlice {              // what one rail moves in one go
  std::uint64_t list = 0;       // the name of exactly these runs: unique in this process, the same at each submission
  std::uint32_t first_run = 0;  // into run_list()
  std::uint32_t run_count = 0;
  std::uint64_t bytes = 0;
};

struct SliceShape {
  std::uint64_t slice_bytes = 4u << 20;  // no slice is larger
  std::size_t lanes = 1;  // that may share the work: the last slices get smaller, so that all end together,
  std::uint64_t min_bytes = 256u << 10;  // but not smaller than this
};

class PlanImpl final : public Plan {
 public:
  struct Target {
    std::shared_ptr<PlanTarget> peer;
    const RegionTable& local;
    const std::vector<RegionInfo>& remote;  // the peer's, sorted by id
    SliceShape shape;
  };
  // kNotFound, kPermissionDenied, kOutOfRange or kInvalidArgument, each naming the piece.
  static Result<std::shared_ptr<const PlanImpl>> build(const Target& target, std::span<const Piece> pieces, Op op);
  static Result<std::shared_ptr<const PlanImpl>> build_blocks(const Target& target, const BlockPairs& blocks, Op op);

  Op op() const override { return op_; }
  std::uint64_t bytes() const override { return bytes_; }
  std::size_t pieces() const override { return pieces_; }
  std::size_t runs() const override { return merged_runs_; }

  const std::shared_ptr<PlanTarget>& peer() const { return peer_; }
  // Local addresses hold as long as all of local_regions() are pinned.
  const std::vector<RunOp>& run_list() const { return runs_; }
  const std::vector<PlanSlice>& slices() const { return slices_; }  // at least one, though it may be empty
  // So little that waking another thread for it, or letting it wait for a slice of another transfer, takes longer.
  bool small() const { return slices_.size() == 1 && bytes_ <= kSmallBytes; }
  const std::vector<RegionKey>& local_regions() const { return local_regions_; }
  std::span<const RunOp> runs_of(const PlanSlice& slice) const {
    return std::span(runs_).subspan(slice.first_run, slice.run_count);
  }
  // Calls visit(index of a piece as given to prepare) for each piece of a run.
  template <typename Visit>
  void for_each_piece(std::uint32_t run, const Visit& visit) const {
    const PlanPieces& range = run_pieces_[run];
    for (std::uint32_t place = range.first; place < range.first + range.count; ++place) {
      visit(order_.empty() ? place : order_[place]);
    }
  }

  // Adds `count` times `each` bytes to the size of a plan, whose pieces may be the same memory many times.
  static Status add_bytes(std::uint64_t* sum, std::uint64_t each, std::uint64_t count);

 private:
  static constexpr std::uint64_t kSmallBytes = 256u << 10;
  friend class PlanBuilder;
  PlanImpl() = default;
  static Status check_piece_count(std::uint64_t pieces);

  std::shared_ptr<PlanTarget> peer_;
  Op op_ = Op::kRead;
  std::uint64_t bytes_ = 0;
  std::size_t pieces_ = 0;
  std::size_t merged_runs_ = 0;         // as if nothing were cut
  std::vector<RunOp> runs_;             // in slice order
  std::vector<PlanPieces> run_pieces_;  // one per run
  std::vector<PlanSlice> slices_;
  std::vector<std::uint32_t> order_;      // indices of the caller's pieces in run order; empty: as given
  std::vector<RegionKey> local_regions_;  // to be pinned
};

}  // namespace kvferry
