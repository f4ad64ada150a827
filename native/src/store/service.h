// What a node answers: takes requests apart, says who may ask what, and hands them to the part of the node that knows.
// Thread-safe.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>

#include "store/caretaker.h"
#include "store/puts.h"
#include "store/reads.h"

namespace kvferry::store {

class Service final : public Handler {
 public:
  explicit Service(NodeCore& core);
  Status start();
  void close();

  Result<std::optional<Bytes>> quick(const Request& request) override;
  Result<Bytes> handle(const Request& request) override;
  std::size_t pool(Type type) const override;
  void lost(std::uint64_t peer, const Status& why) override;
  static RpcEndpoint::Pools threads() { return {2, 2, 4, 4, 1}; }

  // The same for a client in this process; the answer's body. kProtocolError: the request is malformed.
  Result<Bytes> serve(const SessionInfo& who, ByteView request);

  bool set_members(std::uint64_t view, std::vector<Member> members);
  void attaching(std::uint64_t handle, const NodeId& node);
  void member_up(const std::shared_ptr<MemberLink>& link);
  void stood_still();                 // or was given up
  void missed(const NodeId& member);  // it was not heard of since
  std::uint64_t drain(Deadline deadline);
  NodeStats stats() const;

 private:
  struct Asker {             // who asks
    std::uint64_t peer = 0;  // 0: in this process
    std::optional<SessionInfo> session;
  };
  // Whether this node speaks of what it holds in its answer, or takes it for granted to do what it is asked.
  enum class Speaks : std::uint8_t { kNot, kInAnswer, kBefore };
  static Speaks speaks(Type type);
  // `wait` false: nullopt if it would have to wait.
  Result<std::optional<Bytes>> dispatch(const Asker& asker, const MessageHeader& header, ByteView body, bool wait);
  Result<std::optional<Bytes>> answer(const Asker& asker, const MessageHeader& header, ByteView body, bool wait);
  static Status may_ask(const Asker& asker, Type type);
  template <typename Message>
  Result<std::optional<Bytes>> run(const Asker& asker, const MessageHeader& header, ByteView body, bool wait);

  using Wait = bool;
  template <typename Message>
  using Answered = std::optional<Result<typename Message::Answer>>;
  // One per message; nullopt as in dispatch().
  Answered<Attach> on(const Asker& asker, const Attach& attach, Wait wait);
  Answered<Detach> on(const Asker& asker, const Detach& detach, Wait wait);
  Answered<MemberList> on(const Asker& asker, const MemberList& news, Wait wait);
  Answered<Members> on(const Asker& asker, const Members& members, Wait wait);
  Answered<Ping> on(const Asker& asker, const Ping& ping, Wait wait);
  Answered<PutInline> on(const Asker& asker, const PutInline& put, Wait wait);
  Answered<Reserve> on(const Asker& asker, const Reserve& reserve, Wait wait);
  Answered<Commit> on(const Asker& asker, const Commit& commit, Wait wait);
  Answered<Abort> on(const Asker& asker, const Abort& abort, Wait wait);
  Answered<PutFrom> on(const Asker& asker, const PutFrom& put, Wait wait);
  Answered<Pin> on(const Asker& asker, const Pin& pin, Wait wait);
  Answered<Unpin> on(const Asker& asker, const Unpin& unpin, Wait wait);
  Answered<Exists> on(const Asker& asker, const Exists& exists, Wait wait);
  Answered<Match> on(const Asker& asker, const Match& match, Wait wait);
  Answered<Find> on(const Asker& asker, const Find& find, Wait wait);
  Answered<Announce> on(const Asker& asker, const Announce& announce, Wait wait);
  Answered<Retract> on(const Asker& asker, const Retract& retract, Wait wait);
  Answered<Remove> on(const Asker& asker, const Remove& remove, Wait wait);
  Answered<Drop> on(const Asker& asker, const Drop& drop, Wait wait);
  Answered<Removed> on(const Asker& asker, const Removed& removed, Wait wait);
  Answered<Pull> on(const Asker& asker, const Pull& pull, Wait wait);
  Answered<Prefetch> on(const Asker& asker, const Prefetch& prefetch, Wait wait);
  Answered<List> on(const Asker& asker, const List& list, Wait wait);
  Answered<WithTag> on(const Asker& asker, const WithTag& with_tag, Wait wait);
  Answered<Stats> on(const Asker& asker, const Stats& stats, Wait wait);
  Answered<Drain> on(const Asker& asker, const Drain& drain, Wait wait);
  // These hold memory that their answer names until it is encoded.
  Result<std::optional<Bytes>> get_inline(const Asker& asker, const MessageHeader& header, ByteView body, bool wait);
  Result<std::optional<Bytes>> lookup(const Asker& asker, const MessageHeader& header, ByteView body, bool wait);

  // What clients put without a message is put, and counted, before anybody is answered.
  void settle_quick_puts() const;
  void judge_quick_puts();
  // Until this node may speak of what it holds; not for long, and not at all without `wait`.
  bool await_pulse(bool wait);
  static Status not_trusted();
  bool take_members(std::uint64_t number, std::vector<Member> members);
  Status admit(const Attach& attach) const;
  void admit_node(const NodeId& node);
  std::vector<Status> remove_everywhere(const std::vector<ObjectId>& ids, bool alone);
  void keep(const NodeId& owner, const Removed& removed);
  void own(const Removed& removed);
  using ByHolder = std::map<NodeId, std::vector<std::size_t>>;  // places of ids
  ByHolder take_out(const ClusterView& view, const std::vector<ObjectId>& ids);
  void end_dropping(const std::vector<ObjectId>& ids, const ByHolder& by_holder);
  struct Stranger {  // attached as a node, and no member, not yet or not any more
    NodeId node;
    std::uint64_t peer = 0;
    RpcEndpoint::Call<Drop> call;
  };
  // Of ids that were noted in dropping_ before; takes them out of it again.
  std::vector<Status> drop_at(const ClusterView& view, const std::vector<ObjectId>& ids, const ByHolder& by_holder,
                              std::vector<Stranger> strangers);
  std::vector<Stranger> ask_strangers(const ClusterView& view, const std::vector<ObjectId>& ids);
  std::set<std::uint64_t> silent_ones();
  void heard_of(std::uint64_t peer);
  std::vector<NodeId> silent(std::vector<Stranger>& asked);
  void did_not_hear(const NodeId& holder);
  void drop_here(const ObjectId& id);
  std::vector<Directory::Announced> announced(const ClusterView& view, const Announce& announce) const;
  bool takes_others(const ClusterView& view, const Announce& announce,
                    std::span<const Directory::Announced> objects) const;
  void tell_put_again(const Announce::Answer& answer, Wait wait);
  Announce::Done enter(const Directory::Announced& object, HolderIndex holder, bool fresh);
  void yield_to(const Directory::Announced& object);
  void make_hot(const ObjectId& id, const NodeId& reader);

  NodeCore& core_;
  Finder finder_;
  Removals removals_;
  Announcer announcer_;
  Publisher publisher_;
  Fetcher fetcher_;
  Replicator replicator_;
  Puts puts_;
  Reads reads_;
  Caretaker caretaker_;
  std::set<NodeId> forgotten_;  // members that left; guarded by core_.members_mutex
  // Who is told to drop what, and has not answered: the directory names them no more, and they may still serve it.
  std::mutex dropping_mutex_;
  std::unordered_multimap<ObjectId, NodeId> dropping_;  // guarded by dropping_mutex_, as is what follows
  std::set<std::uint64_t> silent_;                      // connections of strangers that did not answer
  std::atomic<bool> some_silent_{false};                // whether there are any
  std::mutex quick_mutex_;
  bool members_change_ = false;  // guarded by quick_mutex_
};

}  // namespace kvferry::store
