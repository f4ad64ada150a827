// Where a plan's transfers go: the lanes of a peer, or those to one medium of our own node.
#pragma once

#include "kvferry/engine.h"

namespace kvferry {

struct EngineCore;
class LanePool;

// Adds what another set of lanes did.
void add_stats(const PeerStats& other, PeerStats* sum);

class PlanTarget {
 public:
  virtual ~PlanTarget() = default;
  virtual bool belongs_to(const EngineCore& core) const = 0;
  virtual LanePool& lanes() = 0;
};

}  // namespace kvferry
