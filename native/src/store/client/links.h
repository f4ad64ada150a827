// The nodes of the cluster as a client reaches them: the members, who of them owns an id, connections to them. A node
// that broke off or does not answer is passed over for a while. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "store/messages.h"
#include "store/rpc.h"

namespace kvferry::store {

struct Connection {  // to a node that has accepted us
  std::shared_ptr<Peer> peer;
  Attach::Answer attached;
  std::uint64_t handle() const { return peer->handle(); }
};

// The members at one moment, as far as they are worth asking. Immutable.
struct Roster {
  std::uint64_t view = 0;
  std::vector<Member> all;
  std::vector<Member> alive;  // without those that are passed over
  std::vector<NodeId> alive_ids;
  bool troubled() const { return alive.size() != all.size(); }
  const NodeId& owner(const ObjectId& id) const;  // one of `alive`, which must not be empty
};

class Links {
 public:
  Links(RpcEndpoint& rpc, std::string cluster) : rpc_(rpc), cluster_(std::move(cluster)) {}

  // The members as our node told them over the connection `peer`; what others tell, or an older list, is ignored. While
  // there is no node of ours, anybody's will do.
  void take_view(std::uint64_t peer, const MemberList& list);
  std::shared_ptr<const Roster> members();
  std::vector<Member> all() const;

  // Who is nearest: named in what we tell other nodes, and never passed over.
  // `process`: its own, if known.
  void set_home(std::shared_ptr<const Connection> home, const ProcessRef& process);

  // A connection to a member, made if there is none: by one call at a time, while others wait for it. Fails at once for
  // one that is passed over.
  Result<std::shared_ptr<const Connection>> to(const NodeId& node, Deadline deadline);
  // The client's own attachment to `endpoint`: `request` is what it asks for.
  Result<std::shared_ptr<const Connection>> attach(const Endpoint& endpoint, const NodeId& expected,
                                                   const Attach& request, Deadline deadline);

  void suspect(const NodeId& node);  // it did not answer
  void lost(std::uint64_t peer);     // its connection broke
  RpcEndpoint& rpc() { return rpc_; }
  // How long to wait for an answer that takes no work.
  milliseconds patience() const;

 private:
  struct Node {
    Member member;
    std::shared_ptr<const Connection> connection;
    Clock::time_point passed_over_until{};
    bool connecting = false;  // a call does
    ProcessRef process;       // pid 0: not known
    bool connected() const { return connection && connection->peer->status().ok(); }
  };
  // What a call may connect to with; `connection`, if it need not.
  struct Way {
    std::shared_ptr<const Connection> connection;
    Endpoint endpoint;
    Attach request;
  };
  Result<Way> way_to(const NodeId& node, Deadline deadline);
  void rebuild_locked(Clock::time_point now);

  RpcEndpoint& rpc_;
  const std::string cluster_;
  mutable std::mutex mutex_;
  std::condition_variable connected_;  // or not: `connecting` of some node ended
  std::uint64_t view_ = 0;             // its number, which counts by itself on each node; all below guarded by mutex_
  std::uint64_t told_by_ = 0;          // the connection it came by
  std::map<NodeId, Node> nodes_;
  std::shared_ptr<const Connection> home_;
  std::shared_ptr<const Roster> snapshot_ = std::make_shared<Roster>();
  Clock::time_point snapshot_until_{};
  milliseconds patience_{1000};
};

}  // namespace kvferry::store
