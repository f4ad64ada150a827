#include "store/removals.h"

#include <algorithm>
#include <map>

namespace kvferry::store {
namespace {

constexpr milliseconds kPatience{5000};

Removed message_of(Removed::To to, std::span<const Removal> removals) {
  const Clock::time_point now = Clock::now();
  Removed message;
  message.to = to;
  for (const Removal& one : removals) {
    const auto ago = std::chrono::duration_cast<milliseconds>(now - one.when);
    message.items.push_back({one.id, std::max(ago, milliseconds(0)), one.again});
  }
  return message;
}

// Whoever would own it if this node died.
std::shared_ptr<MemberLink> keeper_of(const ClusterView& view, const ObjectId& id) {
  for (const auto& link : view.ranked(id)) {
    if (!link->is_self && link->is_up()) return link;
  }
  return nullptr;
}

}  // namespace

Status Removals::start() {
  return threads_.spawn("kvs-removals", [this] { run(); });
}

void Removals::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  threads_.join_all();
}

void Removals::run() {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    changed_.wait(lock, [this] { return closed_ || wanted_; });  // a worker's rest: close() ends it
    if (closed_) return;
    wanted_ = false;
    lock.unlock();
    tell();
    lock.lock();
  }
}

void Removals::tell_soon() {
  {
    const std::lock_guard lock(mutex_);
    wanted_ = true;
  }
  changed_.notify_one();
}

void Removals::tell() {
  const std::lock_guard in_order(telling_);
  const std::vector<Removal> changes = core_.directory.take_changes();
  const auto view = core_.cluster->view();
  if (changes.empty() || view->links.size() < 2) return;
  std::map<std::shared_ptr<MemberLink>, std::vector<Removal>> parts;
  for (const Removal& change : changes) {
    if (!change.again) {
      if (const auto keeper = keeper_of(*view, change.id)) parts[keeper].push_back(change);
      continue;
    }
    for (const auto& link : view->links) {  // others may have been keepers before
      if (!link->is_self && link->is_up()) parts[link].push_back(change);
    }
  }
  std::vector<Cluster::Asked<Removed>> asked;
  for (const auto& [link, part] : parts) {
    for (std::size_t first = 0; first < part.size(); first += kMaxIds) {
      const auto some = std::span(part).subspan(first, std::min(kMaxIds, part.size() - first));
      asked.push_back(core_.cluster->ask(link, message_of(Removed::To::kKeep, some), deadline_in(kPatience)));
    }
  }
  // Who does not answer is told all anew when it is connected again.
  for (auto& one : asked) (void)core_.cluster->answer(one);
}

bool Removals::send(const std::shared_ptr<MemberLink>& link, Removed::To to, std::span<const Removal> removals) {
  return core_.cluster->call(link, message_of(to, removals), deadline_in(kPatience)).ok();
}

bool Removals::hand_over(const ClusterView& view, const std::shared_ptr<MemberLink>& link, bool all) {
  const std::lock_guard in_order(telling_);
  auto removals = core_.directory.removed([&](const ObjectId& id) { return view.owner(id) == link; });
  // What was put again concerns only an owner that was away, which may hold what it had before.
  if (!all) std::erase_if(removals, [](const auto& one) { return one.again; });
  for (std::size_t first = 0; first < removals.size(); first += kMaxIds) {
    const auto part = std::span(removals).subspan(first, std::min(kMaxIds, removals.size() - first));
    if (!send(link, Removed::To::kOwner, part)) return false;
    for (const Removal& one : part) {
      const NodeId& owner = link->member.node_id;
      if (one.again) {
        core_.directory.kept().keep_as_put_again(owner, one.id, one.when);
      } else {
        core_.directory.kept().keep(owner, one.id, one.when);
      }
    }
    core_.directory.forget_removed(part);
  }
  return true;
}

bool Removals::entrust(const ClusterView& view, const std::shared_ptr<MemberLink>& link) {
  const std::lock_guard in_order(telling_);
  auto removals = core_.directory.removed(
      [&](const ObjectId& id) { return view.acting_owner(id)->is_self && keeper_of(view, id) == link; });
  std::erase_if(removals, [](const auto& one) { return one.again; });
  for (std::size_t first = 0; first < removals.size(); first += kMaxIds) {
    const auto part = std::span(removals).subspan(first, std::min(kMaxIds, removals.size() - first));
    if (!send(link, Removed::To::kKeep, part)) return false;
  }
  return true;
}

void Removals::inherit(const std::vector<Member>& members) {
  const auto kept = core_.directory.kept().take(
      [&](const NodeId& owner) { return std::ranges::find(members, owner, &Member::node_id) == members.end(); });
  // One that stood still may not have heard what was put again.
  if (!core_.pulse.vouches()) return;
  for (const Removal& one : kept) {
    const auto put = core_.put_again.find(one.id);
    if (!one.again && put && *put > one.when) continue;
    (void)core_.directory.take_over(one, [] {});
  }
  if (!kept.empty()) tell_soon();
}

}  // namespace kvferry::store
