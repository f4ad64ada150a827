// From memory to memory within the process, for the node as its own peer. Thread-safe.
#pragma once

#include "memory/region_table.h"
#include "transport/transport.h"

namespace kvferry {

class LocalTransport final : public Transport {
 public:
  explicit LocalTransport(const RegionTable& regions) : regions_(regions) {}  // outlives the transport

  std::string_view name() const override { return "local"; }
  Status probe() const override { return {}; }
  std::size_t rails_per_path() const override { return 1; }
  Result<std::unique_ptr<Rail>> open_rail(const PeerContext& peer, Deadline deadline) override;

 private:
  const RegionTable& regions_;
};

}  // namespace kvferry
