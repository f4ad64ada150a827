#include "store/client/links.h"

#include <algorithm>

#include "store/rendezvous.h"

namespace kvferry::store {
namespace {

constexpr milliseconds kPassOver{2000};

milliseconds left_until(Deadline deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
  return std::max(left, milliseconds(0));
}

}  // namespace

const NodeId& Roster::owner(const ObjectId& id) const { return alive_ids[rendezvous_owner(id, alive_ids).value_or(0)]; }

void Links::take_view(std::uint64_t peer, const MemberList& list) {
  const std::lock_guard lock(mutex_);
  if (home_ && home_->handle() != peer) return;
  if (told_by_ == peer && list.number <= view_) return;
  told_by_ = peer;
  view_ = list.number;
  std::map<NodeId, Node> nodes;
  for (const Member& member : list.members) {
    const auto known = nodes_.find(member.node_id);
    Node node = known != nodes_.end() ? known->second : Node{};
    node.member = member;
    nodes.emplace(member.node_id, std::move(node));
  }
  nodes_ = std::move(nodes);
  rebuild_locked(Clock::now());
}

void Links::rebuild_locked(Clock::time_point now) {
  auto fresh = std::make_shared<Roster>();
  fresh->view = view_;
  snapshot_until_ = Clock::time_point::max();
  for (const auto& [id, node] : nodes_) {
    fresh->all.push_back(node.member);
    if (node.passed_over_until > now) {
      snapshot_until_ = std::min(snapshot_until_, node.passed_over_until);
    } else {
      fresh->alive.push_back(node.member);
    }
  }
  if (fresh->alive.empty()) fresh->alive = fresh->all;  // somebody must be asked
  for (const Member& member : fresh->alive) fresh->alive_ids.push_back(member.node_id);
  snapshot_ = std::move(fresh);
}

std::shared_ptr<const Roster> Links::members() {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (now >= snapshot_until_) rebuild_locked(now);
  return snapshot_;
}

std::vector<Member> Links::all() const {
  const std::lock_guard lock(mutex_);
  return snapshot_->all;
}

void Links::set_home(std::shared_ptr<const Connection> home, const ProcessRef& process) {
  if (process.pid != 0) rpc_.watch(home->handle(), process);
  {
    const std::lock_guard lock(mutex_);
    home_ = home;
    patience_ = std::max(home->attached.suspect_after, milliseconds(50));
  }
  take_view(home->handle(), home->attached.view);
  const std::lock_guard lock(mutex_);
  const auto known = nodes_.find(home->attached.node);
  if (known == nodes_.end()) return;
  known->second.connection = std::move(home);
  known->second.passed_over_until = {};
  known->second.process = process;
  rebuild_locked(Clock::now());
}

Result<std::shared_ptr<const Connection>> Links::attach(const Endpoint& endpoint, const NodeId& expected,
                                                        const Attach& request, Deadline deadline) {
  auto peer = rpc_.engine().connect(endpoint, expected, left_until(deadline));
  if (!peer.ok()) return peer.status();
  Attach asked = request;
  asked.shared_memory = request.shared_memory && (*peer)->same_host();
  auto answer = rpc_.call((*peer)->handle(), asked, deadline);
  if (!answer.ok()) {
    (*peer)->close();
    return answer.status().with_context("attaching to the node at " + endpoint.to_string());
  }
  return std::make_shared<const Connection>(Connection{std::move(*peer), std::move(answer->answer)});
}

Result<Links::Way> Links::way_to(const NodeId& node, Deadline deadline) {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto known = nodes_.find(node);
    if (known == nodes_.end()) return {Code::kNotFound, "node " + node.to_string() + " is no member any more"};
    if (known->second.connected()) return Way{known->second.connection, {}, {}};
    const std::string name = "node " + node.to_string() + " at " + known->second.member.endpoint.to_string();
    if (known->second.process.is_stopped()) {
      return {Code::kUnavailable, name + ": " + known->second.process.advice()};
    }
    if (known->second.passed_over_until > Clock::now()) {
      return {Code::kUnavailable, name + " did not answer a moment ago and is passed over for " +
                                      std::to_string(kPassOver.count() / 1000) + " s; try again then"};
    }
    if (!known->second.connecting) {
      known->second.connecting = true;
      Way way;
      way.endpoint = known->second.member.endpoint;
      way.request.home = home_ ? home_->attached.node : NodeId{};
      return way;
    }
    if (connected_.wait_until(lock, deadline) == std::cv_status::timeout) {
      return {Code::kDeadlineExceeded, name + " is still being connected to: it is not there, or overloaded"};
    }
  }
}

Result<std::shared_ptr<const Connection>> Links::to(const NodeId& node, Deadline deadline) {
  KVF_ASSIGN_OR_RETURN(Way way, way_to(node, deadline));
  if (way.connection) return way.connection;
  way.request.cluster = cluster_;
  way.request.who = Attach::Who::kClient;
  auto made = attach(way.endpoint, node, way.request, std::min(deadline, Clock::now() + patience()));
  if (!made.ok()) suspect(node);
  {
    const std::lock_guard lock(mutex_);
    const auto known = nodes_.find(node);
    if (known != nodes_.end()) known->second.connecting = false;
    if (known != nodes_.end() && made.ok()) known->second.connection = *made;
  }
  connected_.notify_all();
  return made;
}

void Links::suspect(const NodeId& node) {
  const std::lock_guard lock(mutex_);
  const auto known = nodes_.find(node);
  if (known == nodes_.end()) return;
  const auto now = Clock::now();
  known->second.passed_over_until = now + kPassOver;
  rebuild_locked(now);
}

void Links::lost(std::uint64_t peer) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  for (auto& [id, node] : nodes_) {
    if (!node.connection || node.connection->handle() != peer) continue;
    node.connection = nullptr;
    node.passed_over_until = now + kPassOver;
  }
  if (home_ && home_->handle() == peer) home_ = nullptr;
  rebuild_locked(now);
}

milliseconds Links::patience() const {
  const std::lock_guard lock(mutex_);
  return patience_;
}

}  // namespace kvferry::store
