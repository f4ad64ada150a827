// Our own node as a peer: its files and its memory, reached by lanes of their own. Thread-safe.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/lane_pool.h"
#include "engine/plan_target.h"
#include "kvferry/engine.h"

namespace kvferry {

struct EngineCore;

// The lanes to one medium.
class SelfLanes final : public PlanTarget, public std::enable_shared_from_this<SelfLanes> {
 public:
  SelfLanes(std::shared_ptr<EngineCore> core, Transport* transport, const EngineOptions& options);

  bool belongs_to(const EngineCore& core) const override { return core_.get() == &core; }
  LanePool& lanes() override { return lanes_; }
  const LanePool& lanes() const { return lanes_; }

 private:
  LanePool::Hooks hooks();

  const std::shared_ptr<EngineCore> core_;
  Transport* const transport_;
  LanePool lanes_;
};

class SelfPeer final : public Peer {
 public:
  static constexpr std::uint64_t kHandle = 0;  // that of no other peer

  explicit SelfPeer(std::shared_ptr<EngineCore> core);

  std::uint64_t handle() const override { return kHandle; }
  const NodeId& node_id() const override;
  Endpoint endpoint() const override;
  std::string metadata() const override;
  std::vector<RegionInfo> regions() const override;
  Status refresh(milliseconds) override { return status(); }
  bool same_host() const override { return true; }
  Status status() const override;
  PeerStats stats() const override;
  std::string transport_note() const override;
  Result<std::span<std::byte>> map(RegionKey key, milliseconds timeout) override;
  void close() override {}  // a node cannot part from itself

  // For the engine.
  bool belongs_to(const EngineCore& core) const { return core_.get() == &core; }
  // The lanes to the medium that these regions are, which must all be of one.
  Result<std::shared_ptr<PlanTarget>> target(std::span<const std::uint32_t> regions) const;
  Deadline expire(Clock::time_point now);
  void stop(const Status& why);

 private:
  const std::shared_ptr<EngineCore> core_;
  const std::shared_ptr<SelfLanes> memory_, files_;
  mutable std::mutex mutex_;
  Status stopped_;  // guarded by mutex_
};

}  // namespace kvferry
