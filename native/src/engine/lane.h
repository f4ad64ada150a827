// One rail and what is needed to keep it: opens and replaces it, moves slices over it. Used by one thread at a time:
// its own, or one that borrowed it from the pool while its own had nothing to do.
#pragma once

#include <cstddef>
#include <memory>

#include "engine/rail_selector.h"
#include "engine/slice.h"

namespace kvferry {

class LanePool;

class Lane {
 public:
  Lane(LanePool& pool, std::size_t index) : pool_(pool), index_(index) {}
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void run();  // its own thread: until the pool stops

  // For the pool. The rail at hand, or null; `slice` is taken for it, then move() executes it and reports to the pool.
  Rail* rail() const { return rail_.get(); }
  std::size_t rank() const { return rank_; }  // of its path, or of the last one it had
  bool wants_other_rail() const;              // there is none, or a better one should be tried now
  Slice* slice() { return &slice_; }
  void move();

 private:
  bool ensure_rail();
  void drop_rail();

  LanePool& pool_;
  const std::size_t index_;
  std::unique_ptr<Rail> rail_;
  std::size_t rank_ = RailSelector::kNoRank;
  Slice slice_;
  bool unproven_ = true;                 // that the rail works is still news to the selector
  Clock::time_point not_before_{};       // do not try to open a rail earlier
  Clock::time_point no_probe_before_{};  // nor, with a rail at hand, a better one
};

}  // namespace kvferry
