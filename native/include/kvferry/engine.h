// The transfer engine: registered regions, peers, prepared plans, one-sided reads and writes, control messages.
// All methods are thread-safe unless said otherwise. Nothing here throws.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvferry/endpoint.h"
#include "kvferry/export.h"
#include "kvferry/file_options.h"
#include "kvferry/node_id.h"
#include "kvferry/status.h"
#include "kvferry/types.h"

namespace kvferry {

struct EngineOptions {
  std::string bind = "127.0.0.1:0";                   // port 0: the kernel chooses, endpoint() tells
  std::string advertise;                              // empty: the bound address; wildcard binds must set it
  std::vector<std::string> transports{"shm", "tcp"};  // best first
  std::vector<std::string> rails;                     // addresses or interfaces for data; empty: that of `bind`
  std::vector<std::string> device;                    // interfaces that rails may use; alone: these are the rails
  bool numa_aware = true;                             // put threads and memory near each other
  int preferred_numa_node = -1;                       // its rails, threads and memory first; -1: none
  bool allow_fallback = true;                         // false: only transports[0] may be used
  std::string cluster_secret;                         // required (>= 16 bytes) when bind is not loopback
  bool tls = false;                                   // TLS 1.3 on all tcp connections; all nodes alike
  std::string tls_cert_file;                          // PEM files; none of the three: a key from cluster_secret
  std::string tls_key_file;
  std::string tls_ca_file;
  std::string metadata;                  // opaque, handed to every peer at hello; at most 64 KiB
  std::uint32_t tcp_streams = 2;         // data connections per peer
  std::uint32_t shm_lanes = 0;           // copying threads per peer; 0: by the number of cores
  std::uint64_t slice_bytes = 4u << 20;  // a transfer is cut into slices of about this size
  std::uint32_t max_connections = 1024;  // inbound; one more is refused
  bool checksum = false;                 // CRC32C per piece on tcp
  bool io_uring = true;                  // false: files by pread and pwrite, even where io_uring is possible
  bool advise_huge_pages = true;         // madvise(MADV_HUGEPAGE) on registered anonymous memory
  milliseconds connect_timeout{5000};
  milliseconds transfer_timeout{30000};  // default deadline of a transfer
  milliseconds link_timeout{5000};       // a connection on which nothing is acknowledged for so long is dead
  milliseconds idle_probe{5000};         // control connections are pinged when idle; 3 missed = peer lost
  std::string fault_plan;                // tests only: see transport/fault/fault_plan.h; empty = off
};

// The library that EngineOptions::tls would use, e.g. "OpenSSL 3.0.19 27 Jan 2026"; else kUnsupported, with what to
// install.
KVFERRY_API Result<std::string> tls_library();

struct Piece {                      // one contiguous run to move
  std::uint32_t local_region = 0;   // id of one of our regions
  std::uint32_t remote_region = 0;  // id of one of the peer's regions
  std::uint64_t local_offset = 0;
  std::uint64_t remote_offset = 0;
  std::uint64_t length = 0;
};

// Equal blocks at even distances in one region, named by their index, e.g. one layer of a paged KV cache.
struct BlockList {
  std::uint32_t region = 0;
  std::uint64_t offset = 0;  // of block 0
  std::uint64_t block_bytes = 0;
  std::uint64_t stride_bytes = 0;  // from the start of one block to the start of the next
  std::uint64_t count = 0;         // at most 2^31
};

struct BlockPairs {                                         // what prepare_blocks() is given
  std::span<const BlockList> local, remote;                 // as many of each, pairwise of one block size
  std::span<const std::int32_t> local_index, remote_index;  // as many of each
};

struct TransportStats {   // of one peer, by one transport; what both took part in counts for the one that ended it
  std::string transport;  // "shm", "tcp", ...
  std::uint64_t bytes_read = 0, bytes_written = 0;
  std::uint64_t transfers = 0, pieces = 0;
  std::map<Code, std::uint64_t> failed_pieces;  // by kind; only what happened
  std::uint64_t rail_failures = 0;              // a rail broke in use
  std::uint64_t retried_slices = 0;             // that had to be moved again because of it
  std::uint64_t rails = 0;                      // open now
  // Submit to settled, of the transfers that did not fail. Bucket 0: below 1 us; bucket i: at least 2^(i-1) us and less
  // than 2^i us; the last one: everything longer.
  std::array<std::uint64_t, 32> latency{};
  double latency_sum_s = 0;
};

struct RailStats {   // one way to a peer: a transport, for tcp with a pair of addresses
  std::string name;  // "shm", "tcp", or "tcp 10.0.0.1 to 10.0.0.2:40123" if there are several
  std::string transport;
  std::uint64_t lanes = 0;  // rails open now
  bool set_aside = false;   // it failed and has not worked since
  std::uint64_t bytes = 0, failures = 0, recoveries = 0;
  std::string reason;  // why it failed last; "" if it works
};

struct PeerStats {
  std::string transport;  // the one in use: "shm" or "tcp"; "file", "local" to ourselves; "" before the first transfer
  std::uint64_t bytes_read = 0, bytes_written = 0, pieces = 0, failed_pieces = 0, retried_slices = 0;
  std::uint64_t rail_switches = 0;           // traffic moved to another transport or rail
  std::uint64_t unsettled_transfers = 0;     // now: submitted, not settled
  std::uint64_t queued_slices = 0;           // now: of these, waiting for a rail
  std::vector<TransportStats> by_transport;  // those used so far; transfers that no rail ever took are in none
  std::vector<RailStats> rails;              // best first
};

// Where a transfer's time went, in seconds; what has not begun is 0.
struct TransferStages {
  double submit_s = 0;  // checks and pins, until it was queued or a rail took it
  double queue_s = 0;   // until a rail took its first slice
  double move_s = 0;    // until the last slice was done: posting, wire and copying
  double settle_s = 0;  // until it counted as settled: notify message, accounts
  double wake_s = 0;    // until the first wait() that had to sleep returned
};

struct Message {           // a control message from a peer
  std::uint64_t peer = 0;  // Peer::handle() of the connection it came by: reply with Engine::send; 0: ourselves
  std::string body;
};

class Peer;      // one live control connection, either direction; outlives its loss (then every call fails)
class Plan;      // immutable, may be submitted many times, from any thread
class Transfer;  // one submission

// While transfers of several classes wait, the higher class goes first, but of every 21 bytes 16 are of high, 4 of
// normal and 1 of low priority (a slice counts for 64 KiB more than it has), so that none starves; a class that did not
// wait has saved nothing up. Within a class slices are taken in turn.
enum class Priority : std::uint8_t { kHigh, kNormal, kLow };

struct SubmitOptions {
  std::optional<milliseconds> timeout;  // default EngineOptions::transfer_timeout
  std::string notify;                   // if not empty: sent to the peer as a message after the data is visible
  Priority priority = Priority::kNormal;
  // For execute() only: asked by the calling thread, while it waits, when a signal came and every 200 ms. True cancels
  // the transfer.
  std::function<bool()> give_up = nullptr;
};

class KVFERRY_API Engine {
 public:
  static Result<std::unique_ptr<Engine>> create(EngineOptions options);
  virtual ~Engine() = default;  // close()

  virtual const NodeId& node_id() const = 0;
  virtual Endpoint endpoint() const = 0;  // what peers should connect to

  // Makes [data, data+length) reachable for peers with `access`. The memory must stay valid until unregister returns.
  // Registered again with the same length, access, kind and name, it is the same region, which goes with the last of as
  // many unregister(); what is registered more than 60 times within a minute is warned of. Names need not differ, but
  // peers cannot look a region up by a name that two have.
  virtual Result<RegionInfo> register_memory(void* data, std::uint64_t length, std::string name, std::uint8_t access,
                                             MemoryKind kind) = 0;
  // A region of our own in a memfd: peers of this host map it once and copy without system calls.
  virtual Result<std::pair<RegionInfo, void*>> allocate(std::uint64_t length, std::string name,
                                                        std::uint8_t access) = 0;
  // A file (or block device) of this host as a region of kind kFile, which only this node reaches, by self(): pieces
  // name it as their remote side. kNotFound, kPermissionDenied, kOutOfRange (shorter than asked), kResourceExhausted
  // (no space), kUnsupported (no direct access), each naming the path.
  virtual Result<RegionInfo> open_file(const std::string& path, const FileOptions& options) = 0;
  virtual Result<std::string> file_note(RegionKey key) = 0;  // how its bytes are moved, and why not better
  // After it returns no transfer touches the memory any more, unless it is registered twice. kDeadlineExceeded if one
  // is still running then.
  virtual Status unregister(RegionKey key, milliseconds timeout) = 0;
  virtual Status set_metadata(std::string metadata) = 0;

  // Blocks up to `timeout`. `expected` not nil: refuse another node, naming both.
  virtual Result<std::shared_ptr<Peer>> connect(const Endpoint& endpoint, const NodeId& expected,
                                                milliseconds timeout) = 0;
  // This node as its own peer: host memory to and from its own files (transport "file") and its other regions
  // ("local"). Its handle is 0. A plan names either files or memory as its remote side.
  virtual std::shared_ptr<Peer> self() = 0;
  // Checks ranges, access and generations once, sorts and merges contiguous runs. Does not block.
  virtual Result<std::shared_ptr<const Plan>> prepare(const std::shared_ptr<Peer>& peer, std::span<const Piece> pieces,
                                                      Op op) = 0;
  // The same for blocks named by index: block local_index[i] of each local list and block remote_index[i] of the remote
  // list at the same place (e.g. of the same layer). Piece l * n + i is index i of list l, n the number of indices.
  // Lists are checked as a whole, indices against their counts.
  virtual Result<std::shared_ptr<const Plan>> prepare_blocks(const std::shared_ptr<Peer>& peer, Op op,
                                                             const BlockPairs& blocks) = 0;
  // Never waits for anybody; a small transfer between processes of one host may be copied, and settled, right here.
  // Local memory belongs to the transfer until it is settled.
  virtual Result<std::shared_ptr<Transfer>> submit(const std::shared_ptr<const Plan>& plan, SubmitOptions options) = 0;
  // submit() and wait for it to settle; the result is the settled transfer. The calling thread moves the data itself if
  // nobody else needs the rail, which saves waking other threads: the way to the lowest latency.
  virtual Result<std::shared_ptr<Transfer>> execute(const std::shared_ptr<const Plan>& plan, SubmitOptions options) = 0;

  // Control messages; at most 1 MiB each. send() blocks only for socket space, up to `timeout`.
  virtual Status send(std::uint64_t peer_handle, std::string_view body, milliseconds timeout) = 0;
  virtual std::optional<Message> next_message(milliseconds timeout) = 0;  // nullopt on timeout or close
  virtual std::shared_ptr<Peer> peer(std::uint64_t handle) = 0;           // nullptr if unknown

  virtual std::vector<std::shared_ptr<Peer>> peers() const = 0;
  virtual std::map<std::string, std::uint64_t> counters() const = 0;  // engine-wide, names end in _total or _bytes
  virtual void close() = 0;  // idempotent; fails what is under way with kCancelled; joins all threads
};

class Peer {
 public:
  virtual ~Peer() = default;
  virtual std::uint64_t handle() const = 0;  // unique within the engine
  virtual const NodeId& node_id() const = 0;
  virtual Endpoint endpoint() const = 0;
  virtual std::string metadata() const = 0;  // the peer's, as of hello or the last refresh
  virtual std::vector<RegionInfo> regions() const = 0;
  virtual Status refresh(milliseconds timeout) = 0;  // fetch metadata and regions anew
  virtual bool same_host() const = 0;
  virtual Status status() const = 0;  // OK while alive, else why it was lost
  virtual PeerStats stats() const = 0;
  virtual std::string transport_note()
      const = 0;  // why the transport in use was chosen, e.g. why shm was not possible; and TLS
  // A region that a peer of this host allocated, mapped into this process: writable if its access lets peers write,
  // else a write to it faults. Valid as long as this object lives. kUnsupported (another host; not allocated by the
  // engine), kNotFound, kStale, kDeadlineExceeded.
  virtual Result<std::span<std::byte>> map(RegionKey key, milliseconds timeout) = 0;
  virtual void close() = 0;
};

class Plan {
 public:
  virtual ~Plan() = default;
  virtual Op op() const = 0;
  virtual std::uint64_t bytes() const = 0;
  virtual std::size_t pieces() const = 0;  // as given
  virtual std::size_t runs() const = 0;    // after merging
};

// Settles at the latest about a second after its deadline or cancel(), whatever hangs: a lane that does not come back
// by then finds the memory shut. Only a transfer to or from a file waits for its disk, which cannot be stopped.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual bool settled() const = 0;                      // nothing of it touches local memory any more
  virtual bool wait(milliseconds timeout) = 0;           // true when settled
  virtual void cancel() = 0;                             // settles soon, as below; unfinished pieces kCancelled
  virtual Status status() const = 0;                     // meaningful once settled: OK iff every piece is OK
  virtual std::vector<Status> piece_status() const = 0;  // one per piece given to prepare, in that order
  virtual std::string transport() const = 0;             // "shm", "tcp", or "shm+tcp" when a rail was switched
  virtual double seconds() const = 0;                    // submit to settled
  virtual TransferStages stages() const = 0;             // meaningful once settled
  virtual int event_fd() = 0;                            // readable once settled; owned by the transfer
};

}  // namespace kvferry
