#include "store/caretaker.h"

#include <algorithm>
#include <map>

#include "base/log.h"

namespace kvferry::store {
namespace {

constexpr milliseconds kRound{1000};
constexpr milliseconds kNewsTimeout{200};
constexpr milliseconds kRepairTimeout{30000}, kDemoteTimeout{1000};
constexpr std::chrono::seconds kRepairAgain{60};
constexpr std::chrono::minutes kLongestCopy{2};  // more than any PULL takes
constexpr std::size_t kRepairAtOnce = 128, kDrainAtOnce = 64;

}  // namespace

Status Caretaker::start() {
  return threads_.spawn("kvs-care", [this] { run(); });
}

void Caretaker::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    jobs_.clear();
  }
  changed_.notify_all();
  threads_.join_all();
}

void Caretaker::push(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || jobs_.size() >= kMostJobs) return;
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void Caretaker::run() {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    changed_.wait_for(lock, kRound, [&] { return closed_ || !jobs_.empty(); });
    if (closed_) return;
    std::function<void()> job;
    if (!jobs_.empty()) {
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    lock.unlock();
    if (job) job();
    look_after();
    lock.lock();
  }
}

void Caretaker::look_after() {
  const auto view = core_.cluster->view();
  if (told_view_ != view->fingerprint) {
    told_view_ = view->fingerprint;
    tell_clients(*view);
  }
  core_.directory.expire_tombstones(Clock::now());
  core_.dropped.forget_before(Clock::now() - kLongestCopy);
  remind();
  const std::uint64_t incidents = core_.cluster->incidents();
  if (!core_.is_settled(*view)) return;
  const bool again = Clock::now() - repaired_at_ >= kRepairAgain;
  if (repaired_for_ == view->fingerprint && repaired_after_ == incidents && !again) return;
  if (!forget_moved(view)) return;
  repaired_for_ = view->fingerprint;
  repaired_after_ = incidents;
  repaired_at_ = Clock::now();
  repair(*view);
}

// The owners know all now that this node knew in their place. False: the members have changed.
bool Caretaker::forget_moved(const std::shared_ptr<const ClusterView>& view) {
  const std::lock_guard unchanged(core_.members_mutex);
  if (core_.cluster->view() != view) return false;
  core_.directory.retain([&](const ObjectId& id) { return view->owner(id)->is_self; });
  return true;
}

// Those that should have begun to tell all by now: they may not know that they must.
void Caretaker::remind() {
  const auto now = Clock::now();
  std::map<NodeId, Clock::time_point> silent;
  for (const NodeId& member : core_.cluster->untold()) {
    auto& since = silent.emplace(member, now).first->second;
    const auto before = silent_since_.find(member);
    if (before == silent_since_.end()) continue;
    if (now - before->second < kRound) {
      since = before->second;
    } else {
      ask_for_all(member);
    }
  }
  silent_since_ = std::move(silent);
}

void Caretaker::ask_for_all(const NodeId& member) {
  const auto view = core_.cluster->view();
  for (const std::uint64_t peer : core_.sessions->made_by(member)) {
    (void)core_.rpc->post(peer, MemberList{view->number, view->members}, deadline_in(kNewsTimeout));
  }
}

void Caretaker::tell_clients(const ClusterView& view) {
  const MemberList news{view.number, view.members};
  for (const std::uint64_t client : core_.sessions->clients()) {
    (void)core_.rpc->post(client, news, deadline_in(kNewsTimeout));  // one that does not hear it asks when it must
  }
}

// Of the ids that this node owns, those with fewer live replicas than were wanted.
std::vector<Wanting> Caretaker::lacking(const ClusterView& view) const {
  std::vector<Wanting> out;
  const auto consider = [&](const ObjectId& id, std::uint32_t wanted, std::vector<NodeId> holders) {
    std::erase_if(holders, [&](const NodeId& node) {
      const auto link = view.find(node);
      return node != core_.self.node_id && (!link || !link->is_up());
    });
    if (!holders.empty() && holders.size() < wanted) out.push_back({id, wanted, std::move(holders)});
  };
  core_.directory.for_each([&](const ObjectId& id, const Location& location) {
    if (location.replicas < 2) return;
    std::vector<NodeId> holders;
    if (core_.store->find(id)) holders.push_back(core_.self.node_id);
    for (const HolderIndex index : location.holders) holders.push_back(core_.names.node(index));
    consider(id, location.replicas, std::move(holders));
  });
  core_.store->for_each([&](const ObjectId& id, const Held& held) {
    if (held.replicas > 1 && view.owner(id)->is_self && !core_.directory.contains(id)) {
      consider(id, held.replicas, {core_.self.node_id});
    }
    return true;
  });
  return out;
}

void Caretaker::repair(const ClusterView& view) {
  if (view.members.size() < 2) return;
  std::vector<Wanting> objects = lacking(view);
  std::uint64_t made = 0;
  for (std::size_t first = 0; first < objects.size(); first += kRepairAtOnce) {
    const std::size_t count = std::min(kRepairAtOnce, objects.size() - first);
    made += replicator_.replicate(std::span(objects).subspan(first, count), deadline_in(kRepairTimeout));
    const std::lock_guard lock(mutex_);
    if (closed_) return;
  }
  core_.counters.add(NodeCounters::kRepaired, made);
  if (made > 0) log_event(LogLevel::kInfo, "replicas_repaired", {{"lacking", objects.size()}, {"made", made}});
}

bool Caretaker::demote(const ObjectId& id) {
  if (core_.draining) return false;
  const auto view = core_.cluster->view();
  FetchOptions options;
  options.only_if_room = true;
  for (const auto& link : view->ranked(id)) {
    if (link->is_self || !link->is_up()) continue;
    const auto done = replicator_.send_to(link, core_.self.node_id, {&id, 1}, options, deadline_in(kDemoteTimeout));
    if (done[0].ok()) {
      core_.counters.add(NodeCounters::kDemoted);
      return true;
    }
    if (done[0].code() != Code::kResourceExhausted) return false;
  }
  return false;
}

std::uint64_t Caretaker::move_away(const std::vector<ObjectId>& ids, Deadline deadline) {
  const auto view = core_.cluster->view();
  std::map<NodeId, std::vector<ObjectId>> by_target;
  for (const ObjectId& id : ids) {
    for (const auto& link : view->ranked(id)) {
      if (link->is_self || !link->is_up()) continue;
      by_target[link->member.node_id].push_back(id);
      break;
    }
  }
  std::uint64_t moved = 0;
  for (const auto& [target, part] : by_target) {
    const auto done = replicator_.send_to(view->find(target), core_.self.node_id, part, {}, deadline);
    std::vector<ObjectId> gone;
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (done[i].ok() && core_.store->remove(part[i])) gone.push_back(part[i]);
    }
    moved += gone.size();
    announcer_.tell(std::move(gone));
  }
  core_.counters.add(NodeCounters::kDrained, moved);
  return moved;
}

std::uint64_t Caretaker::drain(Deadline deadline) {
  for (bool progress = true; progress && !expired(deadline);) {
    progress = false;
    std::vector<ObjectId> ids;
    core_.store->for_each([&](const ObjectId& id, const Held&) {
      ids.push_back(id);
      return true;
    });
    for (std::size_t first = 0; first < ids.size() && !expired(deadline); first += kDrainAtOnce) {
      const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(first);
      const auto count = static_cast<std::ptrdiff_t>(std::min(kDrainAtOnce, ids.size() - first));
      progress = move_away({begin, begin + count}, deadline) > 0 || progress;
    }
    if (ids.empty()) return 0;
  }
  std::uint64_t left = 0;
  core_.store->for_each([&](const ObjectId&, const Held&) {
    ++left;
    return true;
  });
  return left;
}

}  // namespace kvferry::store
