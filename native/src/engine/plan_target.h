// Where a plan's transfers go: the lanes of a peer, or those to one medium of our own node.
#pragma once

namespace kvferry {

struct EngineCore;
class LanePool;

class PlanTarget {
 public:
  virtual ~PlanTarget() = default;
  virtual bool belongs_to(const EngineCore& core) const = 0;
  virtual LanePool& lanes() = 0;
};

}  // namespace kvferry
