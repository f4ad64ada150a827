#include "store/cluster.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/log.h"
#include "store/rendezvous.h"

namespace kvferry::store {
namespace {

constexpr milliseconds kConnectTimeout{5000};
constexpr milliseconds kFirstBackoff{50}, kLongestBackoff{2000}, kRefusedBackoff{10000};
constexpr milliseconds kPingSend{50};
constexpr milliseconds kCatchUpPing{20};
constexpr std::chrono::seconds kLongestCatchUp{60};  // members that never agree must not silence this node for ever
constexpr std::size_t kMostStrangers = 4096;         // nodes that are no members and whose word is remembered

}  // namespace

HolderIndex HolderNames::of(const NodeId& node) {
  const std::lock_guard lock(mutex_);
  if (nodes_.size() >= kNobody && !indices_.contains(node)) return kNobody;
  const auto [place, added] = indices_.try_emplace(node, static_cast<HolderIndex>(nodes_.size()));
  if (added) nodes_.push_back(node);
  return place->second;
}

std::optional<HolderIndex> HolderNames::known(const NodeId& node) const {
  const std::lock_guard lock(mutex_);
  const auto found = indices_.find(node);
  if (found == indices_.end()) return std::nullopt;
  return found->second;
}

NodeId HolderNames::node(HolderIndex index) const {
  const std::lock_guard lock(mutex_);
  return index < nodes_.size() ? nodes_[index] : NodeId();
}

std::shared_ptr<MemberLink> ClusterView::find(const NodeId& node) const {
  const auto found = std::ranges::lower_bound(ids, node);
  if (found == ids.end() || *found != node) return nullptr;
  return links[static_cast<std::size_t>(found - ids.begin())];
}

const std::shared_ptr<MemberLink>& ClusterView::owner(const ObjectId& id) const {
  return links[*rendezvous_owner(id, ids)];
}

std::shared_ptr<MemberLink> ClusterView::acting_owner(const ObjectId& id) const {
  const std::shared_ptr<MemberLink>& first = owner(id);
  if (first->is_up()) return first;
  for (const auto& link : ranked(id)) {
    if (link->is_up()) return link;
  }
  return first;
}

std::vector<std::shared_ptr<MemberLink>> ClusterView::ranked(const ObjectId& id) const {
  std::vector<std::shared_ptr<MemberLink>> out;
  for (const std::size_t index : rendezvous_order(id, ids)) out.push_back(links[index]);
  return out;
}

Cluster::Cluster(RpcEndpoint& rpc, Pulse& pulse, Options options, Callbacks callbacks)
    : rpc_(rpc), pulse_(pulse), options_(std::move(options)), callbacks_(std::move(callbacks)) {
  auto alone = std::make_shared<ClusterView>();
  alone->members = {options_.self};
  alone->links = {std::make_shared<MemberLink>(options_.self, true)};
  alone->ids = {options_.self.node_id};
  alone->fingerprint = members_fingerprint(alone->ids);
  alone->links[0]->settled = alone->fingerprint;
  view_ = std::move(alone);
}

Status Cluster::start() {
  return threads_.spawn("kvs-cluster", [this] { run(); });
}

void Cluster::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  wake_.notify_all();
  threads_.join_all();
}

std::shared_ptr<const ClusterView> Cluster::view() const {
  const std::lock_guard lock(mutex_);
  return view_;
}

// The one that it has, if it stays where it was.
std::shared_ptr<MemberLink> Cluster::link_locked(const Member& member) const {
  auto link = view_->find(member.node_id);
  const bool moved = link && !link->is_self && link->member.endpoint.to_string() != member.endpoint.to_string();
  if (!link || moved) link = std::make_shared<MemberLink>(member, member.node_id == options_.self.node_id);
  const auto said = settled_.find(member.node_id);
  if (said != settled_.end()) link->settled = said->second;
  return link;
}

bool Cluster::set_members(std::uint64_t number, std::vector<Member> members) {
  if (members.empty()) members = {options_.self};
  std::ranges::sort(members, {}, &Member::node_id);
  const auto twice = std::ranges::unique(members, {}, &Member::node_id);
  members.erase(twice.begin(), twice.end());
  auto next = std::make_shared<ClusterView>();
  next->number = number;
  next->since = Clock::now();
  for (const Member& member : members) next->ids.push_back(member.node_id);
  next->fingerprint = members_fingerprint(next->ids);
  next->has_self = false;
  std::vector<std::shared_ptr<MemberLink>> left;
  {
    const std::lock_guard lock(mutex_);
    if (number <= view_->number && view_->number != 0) return false;
    for (const Member& member : members) {
      next->links.push_back(link_locked(member));
      next->has_self = next->has_self || next->links.back()->is_self;
    }
    next->members = std::move(members);
    for (const auto& link : view_->links) {
      if (next->find(link->member.node_id) == link) continue;
      if (!link->is_self) settled_[link->member.node_id] = MemberLink::kMustTell;  // what it told is forgotten
      left.push_back(link);
    }
    if (settled_.size() > next->ids.size() + kMostStrangers) {
      std::erase_if(settled_, [&](const auto& one) { return !next->find(one.first); });
    }
    view_ = next;
  }
  for (const auto& link : left) {
    const std::uint64_t handle = link->handle.exchange(0);
    if (const auto peer = handle == 0 ? nullptr : rpc_.engine().peer(handle)) peer->close();
    set_refusal(link->member.node_id, {});
  }
  wake();
  return true;
}

void Cluster::set_settled(const NodeId& node, std::uint64_t fingerprint) {
  const std::lock_guard lock(mutex_);
  const auto known = settled_.try_emplace(node, MemberLink::kMustTell).first;
  const bool begins = fingerprint == Announce::kTellsAll;
  if (known->second == MemberLink::kMustTell && !begins) return;
  known->second = begins || fingerprint == Announce::kChanges ? 0 : fingerprint;
  if (const auto link = view_->find(node)) link->settled.store(known->second, std::memory_order_release);
}

void Cluster::must_tell(const NodeId& node) {
  const std::lock_guard lock(mutex_);
  const auto [known, added] = settled_.try_emplace(node, MemberLink::kMustTell);
  if (!added && std::exchange(known->second, MemberLink::kMustTell) == MemberLink::kMustTell) return;
  if (const auto link = view_->find(node)) link->settled.store(MemberLink::kMustTell, std::memory_order_release);
  incidents_.fetch_add(1, std::memory_order_acq_rel);
}

std::vector<NodeId> Cluster::untold() const {
  std::vector<NodeId> out;
  for (const auto& link : view()->links) {
    if (!link->is_self && link->is_up() && link->settled == MemberLink::kMustTell) out.push_back(link->member.node_id);
  }
  return out;
}

void Cluster::closed_by(const NodeId& node) {
  const auto link = view()->find(node);
  if (!link || link->is_self || !link->is_up()) return;
  if (link->settled == MemberLink::kMustTell) return;  // it never counted on us
  link->closed = true;
  wake();
}

void Cluster::expect(const NodeId& node) {
  const auto link = view()->find(node);
  if (!link) {
    {
      const std::lock_guard lock(mutex_);
      strangers_.insert(node);
    }
    return wake();
  }
  if (link->is_up() || link->expected.exchange(true)) return;
  wake();
}

void Cluster::wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  wake_.notify_all();
}

void Cluster::await_known(const ClusterView& view, Deadline deadline) const {
  constexpr milliseconds kLookAgain{5};
  const Deadline patience = sooner(deadline, deadline_in(options_.suspect_after));
  while (std::ranges::any_of(view.links, [](const auto& link) { return link->is_unknown(); }) && !expired(patience)) {
    std::this_thread::sleep_for(kLookAgain);
  }
}

Status Cluster::down(const MemberLink& link) {
  return {Code::kUnavailable,
          "node " + link.member.node_id.to_string() + " at " + link.member.endpoint.to_string() + " does not answer"};
}

void Cluster::suspect(const std::shared_ptr<MemberLink>& link, std::uint64_t handle, const Status& why) {
  if (handle == 0 || !link->handle.compare_exchange_strong(handle, 0)) return;  // another call was first
  incidents_.fetch_add(1, std::memory_order_acq_rel);
  // Whatever waits for it fails now. When it comes back it is a connection anew, and is told all again.
  if (const auto peer = rpc_.engine().peer(handle)) peer->close();
  report(link, why);
  wake();
}

void Cluster::report(const std::shared_ptr<MemberLink>& link, const Status& why) {
  const auto now = view();
  if (now->find(link->member.node_id) != link || link->reported.exchange(true)) return;
  log_event(
      LogLevel::kWarning, "member_suspected",
      {{"node", link->member.node_id.to_string()}, {"endpoint", link->member.endpoint.to_string()}, {"reason", why}});
  if (callbacks_.on_suspect) callbacks_.on_suspect(link->member.node_id);
}

void Cluster::lost(std::uint64_t handle) {
  for (const auto& link : view()->links) {
    std::uint64_t expected = handle;
    if (handle == 0 || !link->handle.compare_exchange_strong(expected, 0)) continue;
    incidents_.fetch_add(1, std::memory_order_acq_rel);
    wake();
  }
}

std::vector<std::string> Cluster::refusals() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  for (const auto& [node, why] : refusals_) out.push_back(why);
  return out;
}

void Cluster::set_refusal(const NodeId& node, const Status& why) {
  const std::lock_guard lock(mutex_);
  if (why.ok()) {
    refusals_.erase(node);
  } else {
    refusals_[node] = "member " + node.to_string() + ": " + why.message();
  }
}

// ---- the cluster's thread

void Cluster::run() {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    woken_ = false;
    const auto view = view_;
    const auto strangers = std::exchange(strangers_, {});
    lock.unlock();
    for (const NodeId& node : strangers) {
      if (callbacks_.on_heard) callbacks_.on_heard(node);
    }
    note_pause(*view);
    const Clock::time_point now = Clock::now();
    // If it was this process that stood still, or got no processor, the others get their time to answer.
    const bool overslept = now - last_look_ >= options_.suspect_after / 2;
    if (overslept) forgive_until_ = now + options_.suspect_after;
    last_look_ = now;
    Clock::time_point next = now + options_.suspect_after / 4;
    for (const auto& link : view->links) {
      if (overslept && link->ping) link->pinged_at = now;
      if (!link->is_self) next = std::min(next, look_after(link, now));
    }
    if (pause_) {
      next = std::min(next, now + kCatchUpPing / 2);
      if (has_caught_up(*view) || now - pause_->noticed >= kLongestCatchUp) go_on(*view);
    }
    threads_.reap();
    lock.lock();
    wake_.wait_until(lock, next, [&] { return closed_ || woken_; });
  }
}

// Who was down before the pause may be back: nobody is given up because of what was known then.
void Cluster::note_pause(const ClusterView& view) {
  const auto pause = pulse_.pause();
  const bool fresh = pause && (!pause_ || pause_->number != pause->number);
  pause_ = pause;
  if (!fresh || view.links.size() < 2) return;
  if (pause->length.count() > 0) log_event(LogLevel::kInfo, "stood_still", {{"ms", pause->length.count()}});
  forgive_until_ = pause->noticed + options_.suspect_after;
  for (const auto& link : view.links) {
    if (link->is_up()) continue;
    link->reported = false;
    link->try_again_at = pause->noticed;
    link->backoff = milliseconds(0);
  }
}

// Everybody has said since the pause that he counts on this node, and has told it all (again, if he had not counted on
// it); or he cannot be reached.
bool Cluster::has_caught_up(const ClusterView& view) const {
  return std::ranges::all_of(view.links, [&](const auto& link) {
    if (link->is_self) return true;
    if (!link->is_up()) return !link->is_unknown();
    return link->confirmed_at >= pause_->noticed && link->settled == view.fingerprint;
  });
}

void Cluster::go_on(const ClusterView& view) {
  for (const auto& link : view.links) {
    const bool heard = link->is_self || (link->is_up() && link->confirmed_at >= pause_->noticed);
    if (!heard && callbacks_.on_missed) callbacks_.on_missed(link->member.node_id);
  }
  pulse_.caught_up(*pause_);
}

bool Cluster::must_ask_at_once(const MemberLink& link) const { return pause_ && link.confirmed_at < pause_->noticed; }

// It passes this node over, and may have removed what it holds without it. What it said before is out of date, too.
void Cluster::given_up_by(const std::shared_ptr<MemberLink>& link) {
  link->confirmed_at = {};
  if (pulse_.pause()) return;
  log_event(LogLevel::kWarning, "given_up", {{"by", link->member.node_id.to_string()}});
  pulse_.distrust();
}

void Cluster::take_pong(const std::shared_ptr<MemberLink>& link, const Ping::Answer& answer, Clock::time_point now) {
  link->heard_at = now;
  if (std::exchange(link->doubted, false)) given_up_by(link);
  if (answer.counts_on_you && answer.view == view()->fingerprint) link->confirmed_at = link->sent_at;
}

// When to look again.
Clock::time_point Cluster::look_after(const std::shared_ptr<MemberLink>& link, Clock::time_point now) {
  const std::uint64_t handle = link->handle.load();
  if (handle != 0) {
    check_ping(link, handle, now);
    return now + options_.suspect_after / 4;
  }
  link->ping.reset();
  if (link->connecting) return now + kFirstBackoff;
  // They may have cut off this process because it stood still; it connects anew, and they may fail to answer that.
  const bool forgiven = now < forgive_until_;
  if (link->heard_at != Clock::time_point{} && !link->reported && !forgiven) {
    report(link, {Code::kPeerLost, "its connection broke"});
  }
  if (link->expected.exchange(false)) {
    link->try_again_at = now;
    link->backoff = milliseconds(0);
  }
  if (now >= link->try_again_at) start_connecting(link);
  return std::max(link->try_again_at, now + kFirstBackoff);
}

void Cluster::check_ping(const std::shared_ptr<MemberLink>& link, std::uint64_t handle, Clock::time_point now) {
  if (link->ping && link->ping->ready()) {
    const auto pong = link->ping->finish();
    link->ping.reset();
    if (pong.ok()) take_pong(link, **pong, now);
    const Status answered = pong.status();
    if (answered.code() == Code::kPeerLost) return suspect(link, handle, answered);
  }
  if (!link->ping) {
    const milliseconds pause = must_ask_at_once(*link) ? kCatchUpPing : options_.suspect_after / 4;
    if (!link->closed && now - link->pinged_at < pause) return;
    link->doubted = link->closed.exchange(false) || link->doubted;
    link->pinged_at = link->sent_at = Clock::now();
    link->ping = rpc_.start(handle, Ping{}, now + kPingSend);
    return;
  }
  if (now - link->pinged_at < options_.suspect_after) return;
  suspect(
      link, handle,
      {Code::kDeadlineExceeded, "it has not answered for " + std::to_string(options_.suspect_after.count()) + " ms"});
}

// On a thread of its own: an address that does not answer takes seconds.
void Cluster::start_connecting(const std::shared_ptr<MemberLink>& link) {
  link->connecting = true;
  link->backoff = std::clamp(link->backoff * 2, kFirstBackoff, kLongestBackoff);
  link->try_again_at = Clock::now() + link->backoff;
  const Status started = threads_.spawn("kvs-connect", [this, link] {
    const Status status = connect(link);
    if (status.ok()) {
      link->backoff = milliseconds(0);
      callbacks_.on_up(link);
    } else if (status.code() == Code::kPermissionDenied) {
      link->try_again_at = Clock::now() + kRefusedBackoff;
    } else {
      report(link, status);
    }
    link->connecting = false;
    wake();
  });
  if (!started.ok()) link->connecting = false;
}

Status Cluster::connect(const std::shared_ptr<MemberLink>& link) {
  const NodeId& node = link->member.node_id;
  KVF_ASSIGN_OR_RETURN(const auto peer, rpc_.engine().connect(link->member.endpoint, node, kConnectTimeout));
  Attach attach;
  attach.cluster = options_.name;
  attach.who = Attach::Who::kNode;
  attach.home = options_.self.node_id;
  attach.default_replicas = options_.default_replicas;
  if (callbacks_.on_attaching) callbacks_.on_attaching(peer->handle(), node);
  const auto admitted = rpc_.call(peer->handle(), attach, deadline_in(kConnectTimeout));
  if (!admitted.ok()) {
    peer->close();
    if (admitted.status().code() == Code::kPermissionDenied) {
      log_event(LogLevel::kError, "member_refused_us", {{"node", node.to_string()}, {"reason", admitted.status()}});
      set_refusal(node, admitted.status());
    }
    return admitted.status();
  }
  set_refusal(node, {});
  link->heard_at = Clock::now();
  link->closed = false;
  link->handle.store(peer->handle(), std::memory_order_release);
  link->reported = false;
  incidents_.fetch_add(1, std::memory_order_acq_rel);
  if (!peer->status().ok()) lost(peer->handle());                                  // lost before it was known here
  if (view()->find(node) != link && link->handle.exchange(0) != 0) peer->close();  // left meanwhile
  return {};
}

}  // namespace kvferry::store
