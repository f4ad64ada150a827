// A member of a cluster that does what a test says, and a real node beside it: the orders of messages between holders
// and owners, played step by step.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "store_cluster.h"

namespace kvferry::store::testing {

// A member of two: the other is a real node.
class ScriptedMember final : public Handler {
 public:
  std::string pinned_key;  // what it lets others pin
  // Called by service threads, any number at once. Set before join(), as is the key.
  std::function<void(const Announce&)> on_announce;
  std::function<void(const Retract&)> on_retract;
  std::function<void(const Drop&)> on_drop;
  std::function<void(const Find&)> on_find;
  std::function<void()> on_pin;        // of something without bytes, which it says to hold
  std::atomic<std::uint64_t> view{0};  // fingerprint of the members that it knows
  std::atomic<int> announces{0}, asked_for_all{0}, pings{0};
  std::atomic<Announce::Said> says_to_fresh{Announce::Said::kTaken}, says_to_held{Announce::Said::kTaken};
  std::atomic<bool> heard_settled{false};
  std::atomic<bool> counts_on_it{true};  // as it says to the node's PINGs

  ScriptedMember() {
    auto made = RpcEndpoint::create({}, this, {8});
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (made.ok()) rpc_ = *std::move(made);
  }
  ~ScriptedMember() override { rpc_->close(); }

  Member self() { return {rpc_->engine().node_id(), rpc_->engine().endpoint(), "scripted", 1u << 20}; }
  // Attaches to the node as a member does, and says that it holds nothing.
  void join(const Member& node) {
    const std::vector<NodeId> both{node.node_id, self().node_id};
    fingerprint_ = members_fingerprint(both);
    view = fingerprint_.load();
    const auto peer = rpc_->engine().connect(node.endpoint, node.node_id, kPatience);
    ASSERT_TRUE(peer.ok()) << peer.status().to_string();
    connection_ = (*peer)->handle();
    Attach attach;
    attach.cluster = "local";
    attach.who = Attach::Who::kNode;
    attach.home = self().node_id;
    attach.default_replicas = 1;
    ASSERT_TRUE(call(attach).ok());
    tell_all({});
  }
  void leave() {  // ends its connection to the node; that of the node to it stays
    if (const auto peer = rpc_->engine().peer(connection_)) peer->close();
  }
  template <typename Request>
  Result<Received<Request>> call(const Request& request) {
    return rpc_->call(connection_, request, deadline_in(kPatience));
  }
  Announce::Said announce(std::string_view key, std::string_view value, bool fresh) {
    const auto answer = call(Announce{fresh, 0, {item(key, value)}});
    EXPECT_TRUE(answer.ok()) << answer.status().to_string();
    return answer.ok() ? (*answer)->results.at(0).said : Announce::Said::kConflict;
  }
  std::vector<Announce::Said> tell_all(const std::vector<Announce::Item>& items) {
    EXPECT_TRUE(call(Announce{false, Announce::kTellsAll, {}}).ok());
    std::vector<Announce::Said> said;
    if (const auto answer = call(Announce{false, 0, items}); answer.ok()) {
      for (const auto& done : (*answer)->results) said.push_back(done.said);
    }
    EXPECT_TRUE(call(Announce{false, fingerprint_, {}}).ok());
    return said;
  }
  // What it heard of removals so far: to whom they are said, and of each whether it was put again.
  struct HeardRemoval {
    Removed::To to = Removed::To::kKeep;
    ObjectId id;
    bool again = false;
    bool operator==(const HeardRemoval&) const = default;
  };
  std::vector<HeardRemoval> removals() const {
    const std::lock_guard lock(mutex_);
    return removals_;
  }
  void say_settled() { EXPECT_TRUE(call(Announce{false, fingerprint_, {}}).ok()); }
  static Announce::Item item(std::string_view key, std::string_view value) {
    return {TestClient::id_of(key), digest_of_text(value), value.size(), 1};
  }

  Result<std::optional<Bytes>> quick(const Request&) override { return std::optional<Bytes>(); }
  std::size_t pool(Type) const override { return 0; }
  void lost(std::uint64_t, const Status&) override {}
  Result<Bytes> handle(const Request& request) override {
    switch (request.header.type) {
      case Type::kAttach: {
        Attach::Answer answer;
        answer.node = self().node_id;
        return reply<Attach>(request, std::move(answer));
      }
      case Type::kPing:
        ++pings;
        return reply<Ping>(request, Ping::Answer{view, true, counts_on_it});
      case Type::kMemberList:
        ++asked_for_all;
        return reply<MemberList>(request, {});
      case Type::kAnnounce:
        return take_announce(request);
      case Type::kRetract:
        return take(request, on_retract);
      case Type::kDrop:
        return take(request, on_drop);
      case Type::kRemoved:
        return take_removed(request);
      case Type::kPin:
        return take_pin(request);
      case Type::kFind: {
        KVF_ASSIGN_OR_RETURN(const Find find, decode_request<Find>(request.body));
        if (on_find) on_find(find);
        Find::Answer answer;
        answer.results.resize(find.ids.size());
        return reply<Find>(request, std::move(answer));
      }
      default:
        return encode_refusal(request.header, {Code::kUnsupported, "not scripted"});
    }
  }

 private:
  template <typename Message>
  static Bytes reply(const Request& request, typename Message::Answer answer) {
    return encode_answer<Message>(request.header.request_id, Result<typename Message::Answer>(std::move(answer)));
  }
  template <typename Message>
  static Result<Bytes> take(const Request& request, const std::function<void(const Message&)>& heard) {
    KVF_ASSIGN_OR_RETURN(const Message message, decode_request<Message>(request.body));
    if (heard) heard(message);
    return reply<Message>(request, {});
  }
  Result<Bytes> take_removed(const Request& request) {
    KVF_ASSIGN_OR_RETURN(const Removed removed, decode_request<Removed>(request.body));
    const std::lock_guard lock(mutex_);
    for (const auto& item : removed.items) removals_.push_back({removed.to, item.id, item.again});
    return reply<Removed>(request, {});
  }
  Result<Bytes> take_pin(const Request& request) {
    KVF_ASSIGN_OR_RETURN(const kvferry::store::Pin pin, decode_request<kvferry::store::Pin>(request.body));
    if (on_pin) on_pin();
    kvferry::store::Pin::Answer answer;
    for (const ObjectId& id : pin.ids) {
      auto& done = answer.results.emplace_back();
      done.held.digest = digest_of_text("");
      done.object = TestClient::object(pinned_key, "");
      if (done.object->id != id) done.status = {Code::kNotFound, "not scripted"};
    }
    return reply<kvferry::store::Pin>(request, std::move(answer));
  }
  Result<Bytes> take_announce(const Request& request) {
    KVF_ASSIGN_OR_RETURN(const Announce announce, decode_request<Announce>(request.body));
    if (announce.settled_view == fingerprint_) heard_settled = true;
    if (!announce.items.empty()) {
      ++announces;
      if (on_announce) on_announce(announce);
    }
    const Announce::Said said = announce.fresh || announce.put_again ? says_to_fresh : says_to_held;
    Announce::Answer answer;
    for (std::size_t i = 0; i < announce.items.size(); ++i) answer.results.push_back({said, 1});
    return reply<Announce>(request, std::move(answer));
  }

  std::atomic<std::uint64_t> fingerprint_{0}, connection_{0};
  mutable std::mutex mutex_;
  std::vector<HeardRemoval> removals_;  // guarded by mutex_
  std::unique_ptr<RpcEndpoint> rpc_;
};

// The thread by which a node looks after its connections gets no processor: it neither makes them anew nor asks why
// they have ended. For as long as this lives, or until let_go().
class HeldUp {
 public:
  HeldUp() = default;
  HeldUp(const HeldUp&) = delete;
  HeldUp& operator=(const HeldUp&) = delete;
  ~HeldUp() { let_go(); }
  void hold(NodeImpl& node, const Member& member) {
    if (state_) return;
    state_ = std::make_shared<State>();
    node.on_heard([state = state_](const NodeId&) {
      state->held = true;
      EXPECT_TRUE(soon([&] { return state->over.load(); })) << "held up for longer than the test may take";
    });
    stranger_.join(member);
    EXPECT_TRUE(soon([&] { return state_->held.load(); }));
  }
  void let_go() {
    if (!state_) return;
    stranger_.leave();
    state_->over = true;
  }

 private:
  struct State {
    std::atomic<bool> held{false}, over{false};
  };
  std::shared_ptr<State> state_;
  ScriptedMember stranger_;  // whom it has heard of
};

class ScriptedPair : public ::testing::Test {
 protected:
  void meet() {
    members_ = {member_of(*node_, "real"), scripted_.self()};
    client_.know(members_);
    scripted_.join(members_[0]);
    node_->set_members(1, members_);
    ASSERT_TRUE(soon([&] { return node_->is_settled() && scripted_.heard_settled; }));
  }
  const Member& real() const { return members_[0]; }
  // A key that this one owns.
  std::string key_of(const Member& owner) const {
    std::string key = "key";
    while (client_.owner(key).node_id != owner.node_id) key += "+";
    return key;
  }
  bool node_holds(std::string_view key) const { return node_->store().find(TestClient::id_of(key)).has_value(); }
  bool node_knows(std::string_view key) {
    const auto answer = client_.ask(real(), Exists{{TestClient::id_of(key)}});
    return answer.ok() && (*answer)->found.at(0);
  }
  bool is_settled() {
    const auto answer = client_.ask(real(), Ping{});
    return answer.ok() && (*answer)->settled;
  }

  static NodeOptions patient() {
    NodeOptions options = node_options();
    options.suspect_after = kPatience;  // however slow the machine is: scripts are not silence
    return options;
  }

  // Before the member, whose scripts use them.
  std::unique_ptr<NodeImpl> node_ = make_node(patient());
  std::vector<Member> members_;
  TestClient client_, other_;
  std::string key_;
  std::atomic<int> step_{0};
  std::atomic<bool> flag_{false};
  std::jthread again_;
  ScriptedMember scripted_;
};

}  // namespace kvferry::store::testing
