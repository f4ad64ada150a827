// Makes a plan from checked pieces, one by one: merges neighbours, cuts slices. Used by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/plan.h"

namespace kvferry {

class PlanBuilder {
 public:
  // `bytes`: of all pieces that will come, `pieces`: how many.
  PlanBuilder(std::shared_ptr<PlanTarget> peer, Op op, std::uint64_t bytes, std::size_t pieces,
              const SliceShape& shape);

  // The region that the next pieces' local memory belongs to. Runs never cross regions.
  void use_local_region(RegionKey key);
  // The next piece. Sorting by place in the peer's memory beforehand makes neighbours meet.
  void add(std::byte* local, RegionKey remote, std::uint64_t remote_offset, std::uint64_t length);
  // `order`: the caller's index of each added piece; empty if they came as the caller gave them.
  std::shared_ptr<const PlanImpl> finish(std::vector<std::uint32_t> order);

 private:
  void open_slice();
  void close_slice();
  bool adjoins(const std::byte* local, RegionKey remote, std::uint64_t remote_offset) const;
  void append(std::byte* local, RegionKey remote, std::uint64_t remote_offset, std::uint64_t length, bool joins);

  const std::uint64_t slice_bytes_;
  const std::uint64_t min_bytes_;
  const std::size_t lanes_;
  std::shared_ptr<PlanImpl> plan_;
  PlanSlice slice_;           // being filled
  std::uint64_t limit_ = 0;   // of slice_
  std::uint64_t uncut_ = 0;   // bytes that are in no slice yet
  std::uint32_t place_ = 0;   // of the piece being added
  RegionKey region_;          // of the pieces that come now
  bool fresh_region_ = true;  // none of them has come yet
};

}  // namespace kvferry
