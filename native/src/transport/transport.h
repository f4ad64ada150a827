// What the engine asks of a way to move bytes. A transport is a folder beside this file and passes
// native/tests/transport_conformance.h. One-sided: the peer's threads may serve, its users never take part.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/socket.h"
#include "device/driver.h"
#include "kvferry/endpoint.h"
#include "kvferry/node_id.h"
#include "kvferry/status.h"
#include "kvferry/types.h"
#include "topology/numa_distances.h"

namespace kvferry {

// One run between local memory (already checked and pinned by the engine) and a range of the peer's region.
struct RunOp {
  std::byte* local = nullptr;
  RegionKey remote;
  std::uint64_t remote_offset = 0;
  std::uint64_t length = 0;
};

// What a rail moves in one go.
struct Batch {
  Op op = Op::kRead;
  std::span<const RunOp> runs;
  // Not 0: the name of exactly these runs, unique in this process and the same each time they come. A rail may remember
  // what it made of a list; names are never used again, so that forgetting one is always right.
  std::uint64_t list = 0;
  MemoryGate* gate = nullptr;  // of the local memory; null: always open
};

// A lane to one peer. execute() is called by one thread at a time, not always by the same; interrupt() from any.
class Rail {
 public:
  virtual ~Rail() = default;
  virtual std::string_view transport() const = 0;
  // Moves all runs or says of each why not. `results` are OK on entry; the rail sets those of runs that were not moved.
  // Returns OK when nothing may be tried elsewhere: a result that is not OK is then final for its run (e.g. kStale).
  // Any other return means the rail is broken; runs whose result is not final by is_final() may be tried on another.
  // Never returns later than `deadline` plus 100 ms; stops early when `cancelled` is set or interrupt() is called.
  // When it returns, no byte of a write that failed will land any more. A rail that depends on the owner for that may
  // take kFencePatience longer; if the owner does not confirm, it returns OK and the results say what may still happen.
  virtual Status execute(const Batch& batch, std::span<Status> results, Deadline deadline,
                         const std::atomic<bool>& cancelled) = 0;
  // True: execute() passes the batch's gate for each step that touches local memory, so that the transfer can be ended
  // while execute() has not returned. False: somebody else touches it, who cannot be stopped (a disk).
  virtual bool asks_gate() const { return true; }
  // True: execute() copies memory by itself and waits for nobody, so that a small batch may as well be moved by the
  // thread that submits it.
  virtual bool immediate() const { return false; }
  // A running execute() ends soon; the rail may be broken by it. Comes after `cancelled` was set, so that an interrupt
  // that is too late for its execute() may be, and is, ignored by the next.
  virtual void interrupt() = 0;
};

// True for errors that another path to the same memory would give again.
constexpr bool is_final(Code code) {
  return code == Code::kInvalidArgument || code == Code::kNotFound || code == Code::kOutOfRange ||
         code == Code::kPermissionDenied || code == Code::kStale || code == Code::kUnsupported;
}

struct PeerRail {  // an address of the peer that data connections may go to
  Endpoint endpoint;
  std::uint32_t speed_mbit = 0;  // of its interface; 0: unknown
};

inline constexpr milliseconds kFencePatience{500};
// In the results of such a write, before the reason: what the engine repeats whatever else it says of the transfer.
inline constexpr std::string_view kMayStillLand = "bytes of this write may still land: ";

// A way to a peer that works or fails by itself: for tcp a pair of addresses.
struct Path {
  std::string name;              // "" if the transport has just one
  std::optional<Endpoint> from;  // our address, port 0; none: the kernel chooses
  Endpoint to;
  int numa_node = -1;  // of our interface; -1: unknown, or no matter
};

// What a transport may know of the peer it should open rails to.
struct PeerContext {
  NodeId self;
  NodeId node_id;
  Endpoint endpoint;     // the peer's listening endpoint; port 0: it takes no connections
  std::string shm_name;  // the peer's same-host listener ("unix:@..."), empty if none
  bool same_host = false;
  std::vector<PeerRail> rails;  // none: `endpoint` is the only one
  // Makes the peer end a data connection of ours. OK: nothing that was sent over it will be written any more. By
  // number, as the connection's request ids have it. Thread-safe; outlives the rails.
  std::function<Status(std::uint32_t connection, Deadline deadline)> fence;
  // Where registered memory of ours lies, as found out when it was registered; none: all of it is the host's. A driver
  // that broke since cannot turn memory of an accelerator into memory of the host. Thread-safe; outlives the rails.
  std::function<MemoryPlace(const std::byte* data, std::uint64_t length)> place_of;
  NumaDistances distances;          // between the nodes of this host
  const Interrupt* stop = nullptr;  // set when the engine closes: ends the opening of rails
  Path path{};                      // for open_rail(): the one of paths() to take
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  virtual Status probe() const = 0;  // can this host do it at all? The reason if not.
  // The ways to this peer that may be used side by side, best first; never none. Each has a health of its own.
  virtual std::vector<Path> paths(const PeerContext& peer) const { return {{"", std::nullopt, peer.endpoint, -1}}; }
  virtual std::size_t rails_per_path() const = 0;  // how many rails (one thread each) are worth having
  // Whether one more rail may be open beside those, kept free for small transfers while the others move large ones.
  virtual bool has_spare_rail() const { return true; }
  // Less than this is not worth a rail's while next to another that is at work: its thread must be woken first.
  virtual std::uint64_t min_slice_bytes() const { return 256u << 10; }
  // Whether its rails move memory of accelerators, on either side.
  virtual bool reaches_device_memory() const { return false; }
  // One more rail over `peer.path`, or why it cannot be had. Thread-safe; blocks until `deadline` at most.
  virtual Result<std::unique_ptr<Rail>> open_rail(const PeerContext& peer, Deadline deadline) = 0;
};

}  // namespace kvferry
