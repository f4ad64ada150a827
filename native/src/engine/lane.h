// One thread with one rail: takes slices from its pool, opens and replaces the rail as needed.
#pragma once

#include <cstddef>
#include <memory>

#include "engine/lane_pool.h"

namespace kvferry {

class Lane {
 public:
  Lane(LanePool& pool, std::size_t index) : pool_(pool), index_(index) {}
  ~Lane() { drop_rail(); }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void run();  // until the pool stops

 private:
  bool ensure_rail();
  void move(Slice* slice);
  void drop_rail();

  LanePool& pool_;
  const std::size_t index_;
  std::unique_ptr<Rail> rail_;
  std::size_t rank_ = RailSelector::kNoRank;
  bool failed_before_ = true;            // the next success is news for the selector
  Clock::time_point not_before_{};       // do not try to open a rail earlier
  Clock::time_point no_probe_before_{};  // nor, with a rail at hand, a better one
};

}  // namespace kvferry
