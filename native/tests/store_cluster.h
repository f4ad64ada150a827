// Nodes of the store in one process, and a client that speaks their messages without any of the real client's code.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "engine_fixture.h"
#include "store/node_impl.h"
#include "store/rendezvous.h"
#include "store/runs.h"

namespace kvferry::store::testing {

constexpr milliseconds kHandshake{5000};  // with a member that runs, on a machine that stands still

using kvferry::testing::kPatience;

inline NodeOptions node_options(std::uint64_t dram_bytes = 32u << 20) {
  NodeOptions options;
  options.dram_bytes = dram_bytes;
  options.suspect_after = milliseconds(400);
  options.engine.advise_huge_pages = false;
  return options;
}

inline std::unique_ptr<NodeImpl> make_node(NodeOptions options = node_options()) {
  auto node = NodeImpl::start(std::move(options));
  EXPECT_TRUE(node.ok()) << node.status().to_string();
  return node.ok() ? *std::move(node) : nullptr;
}

inline Member member_of(const Node& node, std::string host) {
  return {node.node_id(), node.endpoint(), std::move(host), 1u << 20};
}

inline ContentDigest digest_of_text(std::string_view text) {
  const std::span<const std::byte> bytes = as_byte_view(text);
  return digest_of(ConstPieces(&bytes, 1));
}

// True as soon as `what` is, within kPatience.
template <typename What>
bool soon(What&& what) {
  const Deadline deadline = deadline_in(kPatience);
  while (!expired(deadline)) {
    if (what()) return true;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return what();
}

class TestClient {
 public:
  explicit TestClient(NodeId home = {}) : home_(home) {
    auto made = RpcEndpoint::create({}, nullptr, {1});
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (made.ok()) rpc_ = *std::move(made);
  }

  // The members that it knows; connects to them when it must.
  void know(std::vector<Member> members) {
    members_ = std::move(members);
    ids_.clear();
    for (const Member& member : members_) ids_.push_back(member.node_id);
  }
  RpcEndpoint& rpc() { return *rpc_; }
  Result<std::uint64_t> connection(const Member& member) {
    const auto known = connections_.find(member.node_id);
    if (known != connections_.end() && rpc_->engine().peer(known->second)) return known->second;
    KVF_ASSIGN_OR_RETURN(const auto peer, rpc_->engine().connect(member.endpoint, member.node_id, kHandshake));
    Attach attach;
    attach.cluster = "local";
    attach.home = home_;
    const auto attached = rpc_->call(peer->handle(), attach, deadline_in(kHandshake));
    if (!attached.ok()) return attached.status();
    connections_[member.node_id] = peer->handle();
    return peer->handle();
  }
  template <typename Request>
  Result<Received<Request>> ask(const Member& member, const Request& request, milliseconds timeout = kPatience) {
    KVF_ASSIGN_OR_RETURN(const std::uint64_t connection, connection(member));
    return rpc_->call(connection, request, deadline_in(timeout));
  }
  const Member& member(const NodeId& id) const { return *std::ranges::find(members_, id, &Member::node_id); }
  const Member& owner(std::string_view key) const { return members_[*rendezvous_owner(id_of(key), ids_)]; }

  static ObjectId id_of(std::string_view key) { return ObjectIds("").of(key); }
  static NewObject object(std::string_view key, std::string_view value, std::uint32_t replicas = 0) {
    NewObject out;
    out.id = id_of(key);
    out.key = key;
    out.bytes = value.size();
    out.replicas = replicas;
    return out;
  }
  PutDone put(const Member& at, std::string_view key, std::string_view value, std::uint32_t replicas = 0) {
    PutInline request;
    request.items.push_back({object(key, value, replicas), digest_of_text(value), as_byte_view(value)});
    auto answer = ask(at, request);
    if (!answer.ok()) return {answer.status(), false, 0};
    return (*answer)->results.at(0);
  }
  // As a client does: the owner first, then those that it names. kNotFound: absent.
  Result<std::string> get(std::string_view key) {
    Status last(Code::kNotFound, "absent");
    for (const std::size_t index : rendezvous_order(id_of(key), ids_)) {
      const auto found = ask(members_[index], Lookup{{id_of(key)}, 1024}, milliseconds(1500));
      if (!found.ok()) continue;  // dead: the next one in order
      const Lookup::Done& done = (*found)->results.at(0);
      if (!done.found) return {Code::kNotFound, "absent"};
      if (done.has_value) return std::string(as_text(done.value));
      for (const std::uint16_t holder : done.holders) {
        const auto known = std::ranges::find(members_, (*found)->nodes.at(holder), &Member::node_id);
        if (known == members_.end()) continue;
        const auto got = ask(*known, GetInline{{{id_of(key), 0, UINT64_MAX}}}, milliseconds(1500));
        if (!got.ok()) continue;
        const GetInline::Done& value = (*got)->results.at(0);
        if (value.status.ok()) return std::string(as_text(value.value));
        last = value.status;
      }
      return last;
    }
    return {Code::kUnavailable, "no member answers"};
  }
  // The value, or why there is none.
  std::string text(std::string_view key) {
    const auto got = get(key);
    return got.ok() ? *got : got.status().to_string();
  }
  Status remove(std::string_view key) {
    const auto answer = ask(owner(key), Remove{{id_of(key)}});
    return answer.ok() ? (*answer)->results.at(0) : answer.status();
  }

 private:
  const NodeId home_;
  std::vector<Member> members_;
  std::vector<NodeId> ids_;  // of them
  std::map<NodeId, std::uint64_t> connections_;
  std::unique_ptr<RpcEndpoint> rpc_;
};

// Nodes on pretended hosts of their own, that know each other.
class TestCluster {
 public:
  explicit TestCluster(std::size_t nodes, const NodeOptions& options = node_options()) {
    for (std::size_t i = 0; i < nodes; ++i) add(options);
    tell();
  }
  std::size_t add(const NodeOptions& options = node_options()) {
    nodes_.push_back(make_node(options));
    members_.push_back(member_of(*nodes_.back(), "host" + std::to_string(members_.size())));
    return nodes_.size() - 1;
  }
  // All living nodes learn who lives.
  void tell() {
    ++view_;
    for (const auto& node : nodes_) {
      if (node) node->set_members(view_, living());
    }
  }
  // That one alone learns of other members; the rest go on with those that they know.
  void tell_only(std::size_t index, std::vector<Member> members) {
    nodes_[index]->set_members(++view_, std::move(members));
  }
  // As if that one were gone; it learns nothing.
  void tell_all_but(std::size_t index) {
    ++view_;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i] && i != index) nodes_[i]->set_members(view_, living_but(index));
    }
  }
  // The others end the connections that it has made to them.
  void cut_off(std::size_t index) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i] || i == index) continue;
      for (const auto& peer : nodes_[i]->rpc().engine().peers()) {
        if (peer->node_id() == members_[index].node_id) peer->close();
      }
    }
  }
  std::vector<Member> living_but(std::size_t index) const {
    std::vector<Member> out = living();
    std::erase_if(out, [&](const Member& one) { return one.node_id == members_[index].node_id; });
    return out;
  }
  void kill(std::size_t index) { nodes_[index].reset(); }
  bool lives(std::size_t index) const { return nodes_[index] != nullptr; }
  std::size_t size() const { return nodes_.size(); }
  NodeImpl& node(std::size_t index) { return *nodes_[index]; }
  const Member& member(std::size_t index) const { return members_[index]; }
  std::size_t index_of(const NodeId& id) const {
    return static_cast<std::size_t>(std::ranges::find(members_, id, &Member::node_id) - members_.begin());
  }
  std::vector<Member> living() const {
    std::vector<Member> out;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i]) out.push_back(members_[i]);
    }
    return out;
  }
  bool settle() {
    return soon(
        [&] { return std::ranges::all_of(nodes_, [](const auto& node) { return !node || node->is_settled(); }); });
  }
  TestClient client(NodeId home = {}) {
    TestClient out(home);
    out.know(living());
    return out;
  }
  std::uint64_t counter(std::size_t index, const std::string& name) { return node(index).stats().counters.at(name); }
  bool holds(std::size_t index, std::string_view key) {
    return node(index).store().find(TestClient::id_of(key)).has_value();
  }
  std::size_t holders(std::string_view key) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i) count += nodes_[i] && holds(i, key) ? 1u : 0u;
    return count;
  }

 private:
  std::vector<std::unique_ptr<NodeImpl>> nodes_;
  std::vector<Member> members_;
  std::uint64_t view_ = 0;
};

}  // namespace kvferry::store::testing
