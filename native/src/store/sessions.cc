#include "store/sessions.h"

#include <algorithm>

namespace kvferry::store {

// A client that comes again with what it has mapped: its page, and so its pins, stay valid.
std::optional<SessionInfo> Sessions::take_over(const Attach& attach) {
  const std::lock_guard lock(mutex_);
  std::erase_if(lingering_, [](const auto& one) { return !one.second.process.is_running(); });
  const auto found = lingering_.find(attach.ended_session);
  if (found == lingering_.end()) return std::nullopt;
  const ProcessRef claimed{static_cast<pid_t>(attach.pid), attach.process_start};
  if (!(found->second.process == claimed)) return std::nullopt;
  const SessionInfo out = found->second;
  lingering_.erase(found);
  return out;
}

Result<SessionInfo> Sessions::attach(std::uint64_t peer, const Attach& attach, bool same_host) {
  if (of(peer)) return {Code::kInvalidArgument, "this connection is attached already"};
  SessionInfo session;
  session.who = attach.who;
  session.home = attach.home;
  if (attach.shared_memory) {
    if (!same_host) return {Code::kUnsupported, "shared memory is for clients of the node's own host"};
    session.process = {static_cast<pid_t>(attach.pid), attach.process_start};
    if (!session.process.is_running()) {
      return {Code::kInvalidArgument, "there is no process " + std::to_string(attach.pid) + " that began then"};
    }
    if (const auto before = take_over(attach)) {
      store_.end_session(before->id);
      session.page = before->page;
    } else {
      KVF_ASSIGN_OR_RETURN(session.page,
                           store_.add_client([process = session.process] { return !process.is_running(); }));
    }
  }
  const std::lock_guard lock(mutex_);
  session.id = ++last_;
  peers_[peer] = session;
  return session;
}

void Sessions::adopt(std::uint64_t peer, const NodeId& node) {
  const std::lock_guard lock(mutex_);
  SessionInfo session;
  session.id = ++last_;
  session.who = Attach::Who::kNode;
  session.home = node;
  session.by_us = true;
  peers_.emplace(peer, session);
}

SessionInfo Sessions::attach_embedded() {
  const std::lock_guard lock(mutex_);
  SessionInfo session;
  session.id = ++last_;
  return session;
}

std::optional<SessionInfo> Sessions::of(std::uint64_t peer) const {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return std::nullopt;
  return found->second;
}

std::optional<SessionInfo> Sessions::take(std::uint64_t peer) {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return std::nullopt;
  const SessionInfo out = found->second;
  peers_.erase(found);
  return out;
}

std::optional<SessionInfo> Sessions::detach(std::uint64_t peer) {
  const auto session = take(peer);
  if (!session) return std::nullopt;
  store_.end_session(session->id);
  if (session->page != kNoPage) store_.remove_client(session->page);
  return session;
}

std::optional<SessionInfo> Sessions::lost(std::uint64_t peer) {
  const auto session = take(peer);
  if (!session) return std::nullopt;
  if (session->page == kNoPage) {
    store_.end_session(session->id);
    return session;
  }
  {
    const std::lock_guard lock(mutex_);
    lingering_[session->id] = *session;
  }
  store_.end_session(session->id, [&store = store_, session = *session] {
    return session.process.is_running() && !store.fence_client(session.page, session.id);
  });
  return session;
}

std::vector<std::uint64_t> Sessions::clients() const {
  std::vector<std::uint64_t> out;
  const std::lock_guard lock(mutex_);
  for (const auto& [peer, session] : peers_) {
    if (session.who == Attach::Who::kClient) out.push_back(peer);
  }
  return out;
}

std::vector<std::uint64_t> Sessions::made_by(const NodeId& member) const {
  std::vector<std::uint64_t> out;
  for (const auto& [node, peer] : made_by_nodes()) {
    if (node == member) out.push_back(peer);
  }
  return out;
}

std::vector<std::pair<NodeId, std::uint64_t>> Sessions::made_by_nodes() const {
  std::vector<std::pair<NodeId, std::uint64_t>> out;
  const std::lock_guard lock(mutex_);
  for (const auto& [peer, session] : peers_) {
    if (session.who == Attach::Who::kNode && !session.by_us) out.emplace_back(session.home, peer);
  }
  return out;
}

std::uint64_t Sessions::count() const { return clients().size(); }

std::uint64_t Sessions::nodes() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::uint64_t>(
      std::ranges::count_if(peers_, [](const auto& one) { return one.second.who == Attach::Who::kNode; }));
}

}  // namespace kvferry::store
