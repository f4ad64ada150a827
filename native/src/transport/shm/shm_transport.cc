#include "transport/shm/shm_transport.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "transport/shm/shm_rail.h"

namespace kvferry {
namespace {

// One core copies 12 to 25 GB/s. On two cores that is nearly all the memory has (a second thread added 0 to 25 %, and
// the engine that we serve needs its cores); large machines have several times as much.
std::size_t lanes_by_cores() { return std::clamp<std::size_t>(std::thread::hardware_concurrency() / 4, 1, 4); }

}  // namespace

ShmTransport::ShmTransport(const LocalNode& local, std::size_t lanes)
    : local_(local), lanes_(lanes != 0 ? lanes : lanes_by_cores()) {}

Status ShmTransport::probe() const {
  if (local_.host.is_nil()) {
    return {Code::kUnsupported,
            "/proc does not tell this host's boot id, so peers of the same host are not recognised"};
  }
  const std::uint64_t word = 0x6b7666;  // any
  const auto copied = ForeignCopy(::getpid()).peek(reinterpret_cast<std::uint64_t>(&word));
  return copied.ok() ? Status() : copied.status();
}

Result<Endpoint> same_host_listener(const PeerContext& peer) {
  if (!peer.same_host) return {Code::kUnsupported, "the peer is on another host or in other namespaces"};
  if (peer.shm_name.empty()) return {Code::kUnsupported, "the peer does not offer shared memory"};
  if (peer.shm_name != shm_name_of(peer.node_id)) {
    return {Code::kUnsupported, "the peer names another same-host listener than its own"};
  }
  return Endpoint::parse(peer.shm_name);
}

Result<std::unique_ptr<Rail>> ShmTransport::open_rail(const PeerContext& peer, Deadline deadline) {
  KVF_ASSIGN_OR_RETURN(const Endpoint endpoint, same_host_listener(peer));
  KVF_ASSIGN_OR_RETURN(Attachment attachment,
                       Attachment::open(local_, peer.node_id, endpoint, Wait{deadline, peer.stop}));
  KVF_ASSIGN_OR_RETURN(Interrupt interrupt, Interrupt::create());
  return std::unique_ptr<Rail>(std::make_unique<ShmRail>(std::move(attachment), std::move(interrupt)));
}

}  // namespace kvferry
