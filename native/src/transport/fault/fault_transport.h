// Decorates another transport with the faults of a plan. For tests. Thread-safe; its rails as any rail.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "transport/fault/fault_plan.h"
#include "transport/transport.h"

namespace kvferry {

class FaultTransport final : public Transport {
 public:
  FaultTransport(std::unique_ptr<Transport> inner, std::vector<FaultRule> rules)
      : inner_(std::move(inner)), rules_(std::move(rules)) {}

  std::string_view name() const override { return inner_->name(); }
  Status probe() const override { return inner_->probe(); }
  std::vector<Path> paths(const PeerContext& peer) const override { return inner_->paths(peer); }
  std::size_t rails_per_path() const override { return inner_->rails_per_path(); }
  bool has_spare_rail() const override { return inner_->has_spare_rail(); }
  bool reaches_device_memory() const override { return inner_->reaches_device_memory(); }
  std::uint64_t min_slice_bytes() const override { return inner_->min_slice_bytes(); }
  Result<std::unique_ptr<Rail>> open_rail(const PeerContext& peer, Deadline deadline) override;

 private:
  friend class FaultRail;
  // The rule for this call of the wanted kind, or null. Later rules win.
  const FaultRule* rule_for(std::uint64_t call, bool opening) const;
  bool waits() const;  // some rule holds up execute()

  const std::unique_ptr<Transport> inner_;
  const std::vector<FaultRule> rules_;
  std::atomic<std::uint64_t> openings_{0};
  std::atomic<std::uint64_t> executions_{0};
};

}  // namespace kvferry
