// Data connections over TCP: each rail is one connection with its own congestion window and, on the other side, its own
// serving thread. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "transport/greeting.h"
#include "transport/transport.h"

namespace kvferry {

struct TcpOptions {
  std::size_t streams = 2;  // rails per pair of addresses
  bool checksum = false;    // CRC32C per piece
  milliseconds link_timeout{5000};
};

class TcpTransport final : public Transport {
 public:
  // `local` outlives the transport.
  TcpTransport(const LocalNode& local, TcpOptions options) : local_(local), options_(options) {}

  std::string_view name() const override { return "tcp"; }
  Status probe() const override { return {}; }
  std::vector<Path> paths(const PeerContext& peer) const override;
  std::size_t rails_per_path() const override { return options_.streams; }
  bool reaches_device_memory() const override { return true; }
  Result<std::unique_ptr<Rail>> open_rail(const PeerContext& peer, Deadline deadline) override;

 private:
  const LocalNode& local_;
  const TcpOptions options_;
  std::atomic<std::uint32_t> last_connection_{0};
};

// Loopback has neither loss nor a bottleneck to probe: bbr's pacing only halves it. Best effort; every kernel allows
// one of these to unprivileged users.
void tune_same_host_socket(int fd);

}  // namespace kvferry
