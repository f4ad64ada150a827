// The pooled, tiered KV store: objects of bytes under keys, write-once, held by nodes in memory and on SSD, found by
// any client. `Node` holds objects; `Store` is what programs put to and get from. Both may live in one process
// (embedded). All methods are thread-safe and none throws. Calls block up to their deadline; none blocks on another
// thread's call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/endpoint.h"
#include "kvferry/engine.h"
#include "kvferry/node_id.h"
#include "kvferry/object_id.h"
#include "kvferry/status.h"
#include "kvferry/types.h"

namespace kvferry::store {

enum class PolicyKind : std::uint8_t { kLru = 0, kLfu = 1, kS3Fifo = 2, kPrefix = 3 };
enum class Tier : std::uint8_t { kDram = 1, kSsd = 2 };
enum class WriteMode : std::uint8_t { kWriteBack = 0, kWriteThrough = 1 };  // to SSD: when evicted, or at each put
enum class SsdSync : std::uint8_t { kNone = 0, kEverySegment = 1, kEveryCommit = 2 };

// XXH3-128 of an object's bytes, unseeded: what "the same bytes" means.
struct ContentDigest {
  std::uint64_t hi = 0;
  std::uint64_t lo = 0;
  auto operator<=>(const ContentDigest&) const = default;
};

struct NodeOptions {
  EngineOptions engine;                     // of the node's own transfer engine
  std::string cluster = "local";            // nodes of different clusters refuse each other
  std::uint64_t dram_bytes = 1ull << 30;    // for objects; spread over arenas, one per NUMA node
  std::uint64_t max_objects = 0;            // 0: by the capacities; more are evicted, oldest by policy
  PolicyKind policy = PolicyKind::kPrefix;  // of the memory tier
  double watermark_high = 0.95;             // eviction in the background begins at this share of dram_bytes
  double watermark_low = 0.90;              // and ends at this one
  std::string ssd_directory;                // empty: no SSD tier
  std::uint64_t ssd_bytes = 0;
  PolicyKind ssd_policy = PolicyKind::kLru;
  WriteMode ssd_write = WriteMode::kWriteBack;
  SsdSync ssd_sync = SsdSync::kNone;
  bool demote_to_remote = false;  // before SSD: to another node that has room
  std::uint32_t default_replicas = 1;
  std::uint32_t hot_reads = 8;  // so many remote reads within hot_window make a local replica; 0: never
  milliseconds hot_window{10000};
  milliseconds reservation_lease{30000};  // a put that is not committed by then is given up
  milliseconds pin_lease{60000};          // pins of remote readers; those of this host end with their process
  milliseconds suspect_after{1000};       // a member that does not answer for so long is passed over
};

struct Member {  // a node as the cluster's membership has it
  NodeId node_id;
  Endpoint endpoint;
  std::string host;  // nodes with the same text share a host: replicas go to different ones
  std::uint64_t dram_bytes = 0;
};

struct NodeStats {  // a snapshot; sizes in bytes
  std::uint64_t objects = 0, dram_objects = 0, ssd_objects = 0;
  std::uint64_t dram_bytes = 0, dram_used = 0, dram_largest_free = 0, pinned_objects = 0;
  std::uint64_t ssd_bytes = 0, ssd_used = 0, ssd_written = 0, ssd_stored = 0;  // written / stored: wear
  std::uint64_t directory_entries = 0, clients = 0, index_bytes = 0, metadata_bytes = 0;
  std::map<std::string, std::uint64_t> counters;  // names end in _total or _bytes: docs/metrics.md
  std::vector<std::string> degraded;              // reasons, e.g. "ssd: ..."; none: healthy
};

struct ObjectInfo {
  std::string key;
  std::string tenant;
  std::uint64_t bytes = 0;
  ContentDigest digest;
  Tier tier = Tier::kDram;
  std::uint32_t replicas = 1;  // wanted
  std::vector<std::string> tags;
  std::optional<milliseconds> expires_in;
};

class KVFERRY_API Node {
 public:
  // Allocates the arenas (kResourceExhausted), opens and recovers the SSD log, listens.
  static Result<std::unique_ptr<Node>> create(NodeOptions options);
  virtual ~Node() = default;  // close()
  virtual NodeId node_id() const = 0;
  virtual Endpoint endpoint() const = 0;
  // The cluster as of now, this node included or not; replaces the last one. `view` grows; an older one is ignored.
  // Until the first call the node is alone. The members that it had are told first that it knows others from now on:
  // waits for those that do not answer, at most for suspect_after.
  virtual void set_members(std::uint64_t view, std::vector<Member> members) = 0;
  // A member whose connection broke or that does not answer: called once per incident, from a thread of the node's or
  // the one that is in set_members(), which must not be called from here.
  virtual void on_suspect(std::function<void(const NodeId&)> callback) = 0;
  // A node of this cluster, by its secret and its name, that has asked this one something and is not among the members,
  // some times a second while that is so: whoever took it for dead may be wrong. From a thread of the node's.
  virtual void on_heard(std::function<void(const NodeId&)> callback) = 0;
  virtual NodeStats stats() const = 0;
  virtual Status status() const = 0;  // OK, or why it serves no more
  // Moves what it holds to other members until `deadline`, then takes no more puts. The count of objects left behind.
  virtual Result<std::uint64_t> drain(milliseconds timeout) = 0;
  virtual void close() = 0;  // idempotent
};

struct StoreOptions {
  EngineOptions engine;  // of the client's own transfer engine; unused with Store::embedded
  std::string cluster = "local";
  std::string tenant;           // keys of different tenants never meet
  milliseconds timeout{10000};  // default deadline of a call
  bool verify = false;          // check the digest of everything that is read
  // Asked when the node is lost: where the one is that has taken its place. Thread-safe, must not wait long.
  std::function<std::optional<Endpoint>()> find_node;
};

struct PutOptions {
  std::optional<milliseconds> timeout;
  std::uint32_t replicas = 0;             // 0: the cluster's default
  std::optional<milliseconds> ttl;        // after that the object is absent
  std::vector<std::string> tags;          // at most 16, of at most 255 bytes
  std::vector<std::string_view> parents;  // none, or one per key: the key before it in its chain ("" for a first one)
  bool chain = false;                     // the keys are one chain: each one's parent is the key before it
};

struct ReadOptions {
  std::optional<milliseconds> timeout;
  std::optional<bool> verify;
};

// One object's bytes in pieces, e.g. K and V of all layers: stored one behind the other.
using ConstPieces = std::span<const std::span<const std::byte>>;
using Pieces = std::span<const std::span<std::byte>>;

struct PutResult {
  Status status;         // kConflict: other bytes are stored under that key
  bool created = false;  // false and OK: the same bytes were there already
  std::uint32_t replicas = 0;
};

struct GetResult {
  // kNotFound: absent; kOutOfRange: the object is longer than the pieces (bytes tells); kDataCorrupt: `verify` found
  // other bytes than those of the digest, wherever it is held.
  Status status;
  std::uint64_t bytes = 0;  // read; with kOutOfRange the object's size
};

// A pinned object of the node of this host, readable in place until the view is released. Movable; releases when it
// dies. Must not outlive its Store.
class KVFERRY_API View {
 public:
  View() = default;
  View(View&& other) noexcept;
  View& operator=(View&& other) noexcept;
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View();
  explicit operator bool() const { return release_ != nullptr; }
  std::span<const std::span<const std::byte>> pieces() const { return pieces_; }  // one, unless memory was fragmented
  std::uint64_t bytes() const { return bytes_; }
  const ContentDigest& digest() const { return digest_; }
  void release();

  struct Contents {
    std::vector<std::span<const std::byte>> pieces;
    std::uint64_t bytes = 0;
    ContentDigest digest;
    std::function<void()> release;
  };
  explicit View(Contents contents);

 private:
  std::vector<std::span<const std::byte>> pieces_;
  std::uint64_t bytes_ = 0;
  ContentDigest digest_;
  std::function<void()> release_;
};

class KVFERRY_API Store {
 public:
  // A client of the node at `endpoint`: in place through shared memory if that is on this host, else over its
  // transports. Attaches again by itself when the node was restarted; calls fail with kUnavailable meanwhile.
  static Result<std::unique_ptr<Store>> open(const Endpoint& node, StoreOptions options);
  // A client within the node's process. The node must outlive it.
  static Result<std::unique_ptr<Store>> embedded(Node& node, StoreOptions options);
  virtual ~Store() = default;  // close()

  // Each returns one result per key, in order; a key's failure does not touch the others. A key may come twice.
  virtual std::vector<PutResult> put(std::span<const std::string_view> keys, std::span<const ConstPieces> values,
                                     const PutOptions& options) = 0;
  virtual std::vector<GetResult> get_into(std::span<const std::string_view> keys, std::span<const Pieces> targets,
                                          const ReadOptions& options) = 0;
  // The `length` bytes at `offset` of one object.
  virtual GetResult get_range(std::string_view key, std::uint64_t offset, std::span<std::byte> target,
                              const ReadOptions& options) = 0;
  // Sizes of objects, kNotFound for those that are absent. Pins nothing and is no access.
  virtual std::vector<Result<std::uint64_t>> sizes(std::span<const std::string_view> keys,
                                                   const ReadOptions& options) = 0;
  // Byte i of `found` becomes 1 if keys[i] is there, else 0. Pins nothing and is no access.
  virtual Status exists(std::span<const std::string_view> keys, std::span<std::uint8_t> found,
                        const ReadOptions& options) = 0;
  // How many of the keys, from the first on, are there. One message per node asked at most. Counts as an access.
  virtual Result<std::uint64_t> match_prefix(std::span<const std::string_view> keys, const ReadOptions& options) = 0;
  // In place. kNotFound if absent; kUnsupported if the client is not on a node's host. What lies on SSD or on another
  // node is brought into the memory of this host's node first.
  virtual Result<View> view(std::string_view key, const ReadOptions& options) = 0;
  // One status per key: OK also if it was absent. kUnavailable names nodes that may still hold a copy; they drop it
  // when they come back.
  virtual std::vector<Status> remove(std::span<const std::string_view> keys, const ReadOptions& options) = 0;
  virtual Result<std::uint64_t> remove_tag(std::string_view tag, const ReadOptions& options) = 0;  // the count
  // Asks for the objects to be in this host's memory soon; returns at once.
  virtual Status prefetch(std::span<const std::string_view> keys, milliseconds within) = 0;
  // Of all nodes, at most `limit` objects whose keys begin with `prefix`, sorted by key, after `after`.
  virtual Result<std::vector<ObjectInfo>> list(std::string_view prefix, std::string_view after, std::uint32_t limit,
                                               const ReadOptions& options) = 0;
  // Registers memory, so that gets from other nodes and puts to them need no copy of ours in between. Optional.
  virtual Status register_memory(void* data, std::uint64_t length) = 0;
  virtual Status unregister_memory(void* data) = 0;
  virtual Result<NodeStats> node_stats(milliseconds timeout) = 0;  // of the node that it is attached to
  virtual std::vector<Member> members() const = 0;
  virtual bool in_place() const = 0;  // attached to a node of this host, whose memory it reads and writes itself
  virtual Status status() const = 0;  // OK while attached, else why not
  virtual std::map<std::string, std::uint64_t> counters() const = 0;
  virtual void close() = 0;
};

}  // namespace kvferry::store
