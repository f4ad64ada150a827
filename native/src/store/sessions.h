// Who is attached to this node, over which connection, and what ends with it. A client of this host ends with its
// process: until then it may write to what it has reserved and read what it has pinned, whatever became of its
// connection. A remote client ends with its connection. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "store/local_store.h"
#include "store/messages.h"
#include "store/process.h"

namespace kvferry::store {

struct SessionInfo {
  Session id = 0;  // never used again
  Attach::Who who = Attach::Who::kClient;
  NodeId home;  // of a client: its own node, or nil; of a node: itself
  std::uint32_t page = kNoPage;
  ProcessRef process;  // of a client with a page
  bool by_us = false;  // we attached to that member; what it announces comes over the connection that it made
};

class Sessions {
 public:
  explicit Sessions(LocalStore& store) : store_(store) {}

  // kPermissionDenied, kUnsupported (shared memory asked for from another host), kResourceExhausted (no page left).
  Result<SessionInfo> attach(std::uint64_t peer, const Attach& attach, bool same_host);
  // A member that we attached to: it may ask us over that connection, too.
  void adopt(std::uint64_t peer, const NodeId& node);
  // Of a client in this process; ends by end_embedded().
  SessionInfo attach_embedded();
  void end_embedded(Session id) { store_.end_session(id); }
  std::optional<SessionInfo> of(std::uint64_t peer) const;
  std::optional<SessionInfo> detach(std::uint64_t peer);  // the client left of its own accord; who it was
  std::optional<SessionInfo> lost(std::uint64_t peer);    // its connection ended
  std::vector<std::uint64_t> clients() const;             // their connections
  std::vector<std::uint64_t> made_by(const NodeId& member) const;
  std::vector<std::pair<NodeId, std::uint64_t>> made_by_nodes() const;  // and whose connections they are
  std::uint64_t count() const;                                          // of clients
  std::uint64_t nodes() const;                                          // as many are attached

 private:
  std::optional<SessionInfo> take(std::uint64_t peer);
  std::optional<SessionInfo> take_over(const Attach& attach);

  LocalStore& store_;
  mutable std::mutex mutex_;
  Session last_ = 0;                            // guarded by mutex_, as is what follows
  std::map<std::uint64_t, SessionInfo> peers_;  // by connection
  std::map<Session, SessionInfo> lingering_;    // clients with a page whose connection ended but not their process
};

}  // namespace kvferry::store
