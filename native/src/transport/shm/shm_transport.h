// Copies between processes of one host, without sockets on the data path: arenas are mapped, other memory is copied by
// the kernel (process_vm_readv, process_vm_writev). Thread-safe.
#pragma once

#include "transport/greeting.h"
#include "transport/transport.h"

namespace kvferry {

// Where a peer of this host can be attached to. kUnsupported: it is on another host, or offers no shared memory.
Result<Endpoint> same_host_listener(const PeerContext& peer);

class ShmTransport final : public Transport {
 public:
  // `local` outlives the transport. 0 lanes: as many as suit the number of cores.
  ShmTransport(const LocalNode& local, std::size_t lanes);

  std::string_view name() const override { return "shm"; }
  Status probe() const override;
  std::size_t rails_per_path() const override { return lanes_; }
  std::uint64_t min_slice_bytes() const override { return 2u << 20; }  // copied in 0.1 ms, a few times a wake-up
  Result<std::unique_ptr<Rail>> open_rail(const PeerContext& peer, Deadline deadline) override;

 private:
  const LocalNode& local_;
  const std::size_t lanes_;
};

}  // namespace kvferry
