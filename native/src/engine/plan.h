// A checked, sorted and merged list of runs to one peer. Immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvferry/engine.h"
#include "memory/region_table.h"

namespace kvferry {

class PeerImpl;

struct PlanRun {                  // one contiguous copy; covers pieces order[first_piece, first_piece + piece_count)
  std::uint32_t local_index = 0;  // into PlanImpl::local_regions()
  std::uint32_t first_piece = 0;
  std::uint32_t piece_count = 0;
  RegionKey remote;
  std::uint64_t local_offset = 0;
  std::uint64_t remote_offset = 0;
  std::uint64_t length = 0;
};

class PlanImpl final : public Plan {
 public:
  // `remote` is the peer's region list, sorted by id. kNotFound, kPermissionDenied, kOutOfRange or kInvalidArgument,
  // each naming the piece.
  static Result<std::shared_ptr<const PlanImpl>> build(std::shared_ptr<PeerImpl> peer, const RegionTable& local,
                                                       const std::vector<RegionInfo>& remote,
                                                       std::span<const Piece> pieces, Op op);

  Op op() const override { return op_; }
  std::uint64_t bytes() const override { return bytes_; }
  std::size_t pieces() const override { return order_.size(); }
  std::size_t runs() const override { return runs_.size(); }

  const std::shared_ptr<PeerImpl>& peer() const { return peer_; }
  const std::vector<PlanRun>& run_list() const { return runs_; }
  const std::vector<std::uint32_t>& order() const { return order_; }
  const std::vector<RegionKey>& local_regions() const { return local_regions_; }

 private:
  PlanImpl() = default;
  std::uint32_t local_index(RegionKey key);
  void merge(std::span<const Piece> pieces, const std::vector<RegionKey>& local_keys,
             const std::vector<RegionKey>& remote_keys);

  std::shared_ptr<PeerImpl> peer_;
  Op op_ = Op::kRead;
  std::uint64_t bytes_ = 0;
  std::vector<PlanRun> runs_;
  std::vector<std::uint32_t> order_;  // indices of the caller's pieces in run order
  std::vector<RegionKey> local_regions_;
};

}  // namespace kvferry
