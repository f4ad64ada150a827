// What the parts of one client share.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/fork_count.h"
#include "kvferry/store.h"
#include "store/client/home.h"
#include "store/client/links.h"
#include "store/client/memory.h"
#include "store/rpc.h"

namespace kvferry::store {

struct ClientCounters {
  std::atomic<std::uint64_t> puts{0}, put_bytes{0}, put_conflicts{0}, put_failures{0};
  std::atomic<std::uint64_t> memory_hits{0}, ssd_hits{0}, remote_hits{0}, misses{0};
  std::atomic<std::uint64_t> get_bytes{0}, failovers{0}, reattached{0};
};

struct ClientCore {
  ClientCore(StoreOptions given, Endpoint where) : options(std::move(given)), endpoint(where), ids(options.tenant) {}

  // The node we are attached to, attached again if it was lost: by one call at a time, while others wait for it, each
  // within its deadline. kUnavailable: at most one try in 200 ms. Whoever holds it may read and write in place.
  Result<std::shared_ptr<Home>> home(Deadline deadline);
  Status home_status() const;
  Result<std::shared_ptr<Home>> attach(const Home* before, Deadline deadline);  // of home()
  // kCancelled: closed. kUnsupported: this is a child of the process that made the store. It has none of its threads,
  // and pins that it set or gave back would be the parent's.
  Status usable() const;
  bool forked() const { return fork_count() != forks; }

  const StoreOptions options;
  Endpoint endpoint;  // where the node is; of the call that attaches once the client is made
  const ObjectIds ids;
  const std::uint64_t forks = fork_count();
  std::atomic<bool> closed{false};
  ClientCounters counters;
  std::unique_ptr<RpcEndpoint> rpc;
  std::unique_ptr<Links> links;
  std::unique_ptr<ProgramMemory> memory;

  mutable std::mutex mutex;
  std::shared_ptr<Home> current;     // guarded by mutex, as is what follows
  bool attaching = false;            // a call does, without the lock
  std::condition_variable attached;  // or not: `attaching` ended, or `closed`
  Clock::time_point next_try{};
  Status last_failure;
};

// For calls whose answer takes the other side no work: within the node's patience, and the deadline.
inline Deadline soon(const ClientCore& core, Deadline deadline) {
  return std::min(deadline, Clock::now() + core.links->patience());
}

// True for errors after which the node is to be passed over, and another one asked.
constexpr bool node_failed(Code code) {
  return code == Code::kPeerLost || code == Code::kUnavailable || code == Code::kDeadlineExceeded ||
         code == Code::kCancelled || code == Code::kProtocolError || code == Code::kIdentityMismatch;
}

}  // namespace kvferry::store
