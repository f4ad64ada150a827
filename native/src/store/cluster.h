// The other nodes: who they are, a connection to each that is kept, and who is to be passed over. A member is up while
// its connection is: one that does not answer within suspect_after is disconnected, and connected again when it
// answers. Thread-safe; callbacks come from this object's threads, without locks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "base/deadline.h"
#include "store/directory.h"
#include "store/messages.h"
#include "store/pulse.h"
#include "store/rpc.h"

namespace kvferry::store {

// Small numbers for node ids, so that the directory's entries are small. Thread-safe.
class HolderNames {
 public:
  static constexpr HolderIndex kNobody = UINT16_MAX;  // once more nodes have come and gone than there are numbers

  HolderIndex of(const NodeId& node);  // given at the first call, never taken back
  std::optional<HolderIndex> known(const NodeId& node) const;
  NodeId node(HolderIndex index) const;

 private:
  mutable std::mutex mutex_;
  std::map<NodeId, HolderIndex> indices_;  // guarded by mutex_
  std::vector<NodeId> nodes_;              // guarded by mutex_
};

struct MemberLink {  // one member, for as long as it is one
  MemberLink(Member who, bool self) : member(std::move(who)), is_self(self) {}
  const Member member;
  const bool is_self;
  static constexpr std::uint64_t kMustTell = 1;
  std::atomic<std::uint64_t> handle{0};  // of our connection to it; 0: down, pass it over
  // Fingerprint of the members for which it has announced all that it must. kMustTell: it has to announce all anew, and
  // has not begun to. 0: it has begun.
  std::atomic<std::uint64_t> settled{kMustTell};
  // Neither connected yet nor given up: whatever it holds may exist.
  bool is_unknown() const { return !is_up() && !reported.load(std::memory_order_acquire); }
  bool is_up() const { return is_self || handle.load(std::memory_order_acquire) != 0; }

 private:
  friend class Cluster;
  // By the cluster's thread.
  std::optional<RpcEndpoint::Call<Ping>> ping;
  Clock::time_point pinged_at{}, heard_at{}, try_again_at{};
  Clock::time_point sent_at{};       // the last PING
  Clock::time_point confirmed_at{};  // the last one after which it counted on us
  milliseconds backoff{0};
  std::atomic<bool> connecting{false};
  std::atomic<bool> expected{false};  // it lives: connect to it at once
  std::atomic<bool> reported{false};  // as suspected, since it was up last
  std::atomic<bool> closed{false};    // it ended its connection to us, and has not been asked since
  bool doubted = false;               // by the cluster's thread: the PING under way asks why
};

struct ClusterView {  // immutable
  std::uint64_t number = 0;
  std::uint64_t fingerprint = 0;
  Clock::time_point since{};
  std::vector<std::shared_ptr<MemberLink>> links;  // sorted by node id
  std::vector<Member> members;                     // the same, as told
  std::vector<NodeId> ids;                         // the same
  bool has_self = true;

  std::shared_ptr<MemberLink> find(const NodeId& node) const;
  const std::shared_ptr<MemberLink>& owner(const ObjectId& id) const;  // whoever has the highest score
  // The same of those that are up; this node if nobody is.
  std::shared_ptr<MemberLink> acting_owner(const ObjectId& id) const;
  std::vector<std::shared_ptr<MemberLink>> ranked(const ObjectId& id) const;  // all, best first
};

class Cluster {
 public:
  struct Options {
    Member self;
    std::string name;
    std::uint32_t default_replicas = 1;
    milliseconds suspect_after{1000};
  };
  struct Callbacks {
    std::function<void(const std::shared_ptr<MemberLink>&)> on_up;  // connected and admitted: tell it all that it owns
    std::function<void(const NodeId&)> on_suspect;                  // once per incident
    // Connected, and about to ask to be admitted: from then on that one may ask us.
    std::function<void(std::uint64_t handle, const NodeId&)> on_attaching;
    std::function<void(const NodeId&)> on_heard;   // of a node that is not among the members
    std::function<void(const NodeId&)> on_missed;  // this node stood still, and goes on without having heard of it
  };

  Cluster(RpcEndpoint& rpc, Pulse& pulse, Options options, Callbacks callbacks);
  ~Cluster() { close(); }
  Status start();
  void close();

  std::shared_ptr<const ClusterView> view() const;
  // False: older than the present one, ignored. Links of members that stay are kept.
  bool set_members(std::uint64_t number, std::vector<Member> members);

  // A request to a member under way. A member that does not answer within suspect_after is down from then on, unless it
  // may be waiting for others itself, or the caller has less time: whether it lives is then for its PINGs to say.
  template <typename Request>
  struct Asked {
    std::shared_ptr<MemberLink> link;
    std::uint64_t handle = 0;
    bool patient = false;
    std::optional<RpcEndpoint::Call<Request>> call;
  };
  template <typename Request>
  Asked<Request> ask(const std::shared_ptr<MemberLink>& link, const Request& request, Deadline deadline,
                     bool patient = false) {
    Asked<Request> asked{link, link->handle.load(std::memory_order_acquire), patient, std::nullopt};
    Deadline limit = deadline;
    if constexpr (kWaitsForOthers<Request>) {
      asked.patient = true;
      if (!patient) limit = sooner(deadline, deadline_in(kOthersTurn * options_.suspect_after));
    } else if (!patient) {
      limit = sooner(deadline, deadline_in(options_.suspect_after));
      asked.patient = limit == deadline;
    }
    if (asked.handle != 0) asked.call = rpc_.start(asked.handle, request, limit);
    return asked;
  }
  template <typename Request>
  Result<Received<Request>> answer(Asked<Request>& asked) {
    if (!asked.call) return down(*asked.link);
    auto answer = asked.call->finish();
    if (is_silence(answer.status(), asked.patient)) suspect(asked.link, asked.handle, answer.status());
    return answer;
  }
  template <typename Request>
  Result<Received<Request>> call(const std::shared_ptr<MemberLink>& link, const Request& request, Deadline deadline) {
    auto asked = ask(link, request, deadline);
    return answer(asked);
  }
  milliseconds patience() const { return options_.suspect_after; }
  void suspect(const std::shared_ptr<MemberLink>& link, std::uint64_t handle, const Status& why);
  // The node has announced all that it must for these members, unless it has to begin anew; Announce::kTellsAll: it
  // begins; Announce::kChanges: it knows others from now on. It may not be a member (yet).
  void set_settled(const NodeId& node, std::uint64_t fingerprint);
  // What is known of the node may be wrong, whatever it says until it begins to tell all.
  void must_tell(const NodeId& node);
  std::vector<NodeId> untold() const;  // members that are up and must begin
  // It was heard of: if its connection is down, it is made anew at once; if it is no member, that is reported.
  void expect(const NodeId& node);
  // Grows whenever a member goes down, comes up, or must tell all anew.
  std::uint64_t incidents() const { return incidents_.load(std::memory_order_acquire); }
  void lost(std::uint64_t handle);  // a connection ended; of a member or not
  // It ended the connection that it had made to us. If it answers all the same, it has given this node up.
  void closed_by(const NodeId& node);
  // Until each member of the view is up or known to be down, at most for suspect_after.
  void await_known(const ClusterView& view, Deadline deadline) const;
  void wake();
  std::vector<std::string> refusals() const;  // members that do not admit us, and why

 private:
  // Whoever is asked these may have to ask a member that does not answer, for as long as it takes to find that out, or
  // others what it missed while it stood still.
  template <typename Request>
  static constexpr bool kWaitsForOthers = std::is_same_v<Request, Announce> || std::is_same_v<Request, Lookup> ||
                                          std::is_same_v<Request, Find> || std::is_same_v<Request, Removed>;
  static constexpr int kOthersTurn = 3;

  static bool is_silence(const Status& status, bool patient) {
    return status.code() == Code::kPeerLost || (status.code() == Code::kDeadlineExceeded && !patient);
  }
  std::shared_ptr<MemberLink> link_locked(const Member& member) const;
  static Status down(const MemberLink& link);
  void run();
  Clock::time_point look_after(const std::shared_ptr<MemberLink>& link, Clock::time_point now);
  void check_ping(const std::shared_ptr<MemberLink>& link, std::uint64_t handle, Clock::time_point now);
  void take_pong(const std::shared_ptr<MemberLink>& link, const Ping::Answer& answer, Clock::time_point now);
  void given_up_by(const std::shared_ptr<MemberLink>& link);
  bool must_ask_at_once(const MemberLink& link) const;
  void note_pause(const ClusterView& view);
  bool has_caught_up(const ClusterView& view) const;
  void go_on(const ClusterView& view);
  void start_connecting(const std::shared_ptr<MemberLink>& link);
  Status connect(const std::shared_ptr<MemberLink>& link);
  void report(const std::shared_ptr<MemberLink>& link, const Status& why);
  void set_refusal(const NodeId& node, const Status& why);

  RpcEndpoint& rpc_;
  Pulse& pulse_;
  const Options options_;
  const Callbacks callbacks_;
  Clock::time_point last_look_ = Clock::now();  // by the cluster's thread only
  std::optional<Pulse::Pause> pause_;           // since which it catches up; by that thread, too
  Clock::time_point forgive_until_{};           // whose connection broke is no suspect yet: this process stood still

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::shared_ptr<const ClusterView> view_;  // guarded by mutex_, as is what follows
  std::map<NodeId, std::string> refusals_;
  std::set<NodeId> strangers_;               // heard of since the cluster's thread looked
  std::map<NodeId, std::uint64_t> settled_;  // of nodes, as in their links; members or not
  std::atomic<std::uint64_t> incidents_{0};
  bool woken_ = false;
  bool closed_ = false;
  ThreadGroup threads_;  // last: joined first
};

}  // namespace kvferry::store
