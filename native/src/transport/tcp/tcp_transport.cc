#include "transport/tcp/tcp_transport.h"

#include "base/deadline.h"
#include "transport/tcp/rail_pairs.h"
#include "transport/tcp/tcp_rail.h"

namespace kvferry {

void tune_same_host_socket(int fd) {
  for (const char* algorithm : {"cubic", "reno"}) {
    if (set_congestion_control(fd, algorithm).ok()) return;
  }
}

std::vector<Path> TcpTransport::paths(const PeerContext& peer) const {
  return pair_rails(local_.rails, peer.rails, peer.endpoint);
}

Result<std::unique_ptr<Rail>> TcpTransport::open_rail(const PeerContext& peer, Deadline deadline) {
  if (peer.path.to.family() == Endpoint::Family::kUnix) return {Code::kUnsupported, "the peer has no TCP endpoint"};
  const Path& path = peer.path;
  if (path.to.port() == 0) {
    return {Code::kUnavailable,
            "the peer told no address that this host can reach: set transfer.bind or "
            "transfer.advertise there"};
  }
  const Wait wait{deadline, peer.stop};
  KVF_ASSIGN_OR_RETURN(UniqueFd fd, connect_to(path.to, wait, path.from ? &*path.from : nullptr));
  if (peer.same_host || path.to.is_loopback()) tune_same_host_socket(fd.get());
  KVF_RETURN_IF_ERROR(watch_link(fd.get(), options_.link_timeout));
  Channel channel(std::move(fd));
  const auto ack = greet(channel, local_, peer.node_id, wire::Purpose::kTcpData, wait);
  if (!ack.ok()) return ack.status().with_context("data connection to " + path.to.to_string());
  KVF_ASSIGN_OR_RETURN(Interrupt interrupt, Interrupt::create());
  TcpRail::Connection connection{std::move(channel), std::move(interrupt),  path.to,      ++last_connection_,
                                 peer.fence,         options_.link_timeout, peer.place_of};
  return std::unique_ptr<Rail>(std::make_unique<TcpRail>(std::move(connection), options_.checksum));
}

}  // namespace kvferry
