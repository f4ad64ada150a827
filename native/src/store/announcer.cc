#include "store/announcer.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "base/log.h"

namespace kvferry::store {
namespace {

constexpr std::size_t kBatch = 2048;
constexpr milliseconds kPatience{5000};
constexpr milliseconds kRetryPause{200};
constexpr std::size_t kMostRetries = 1u << 20;  // ids waiting; beyond it they are told with the next change of members

}  // namespace

Status Announcer::start() {
  return threads_.spawn("kvs-announce", [this] { run(); });
}

void Announcer::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  threads_.join_all();
}

void Announcer::push(Job job) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void Announcer::member_up(const std::shared_ptr<MemberLink>& link) { push({link, nullptr, {}, {}}); }

void Announcer::view_changed(std::shared_ptr<const ClusterView> before) { push({nullptr, std::move(before), {}, {}}); }

void Announcer::retract(std::span<const ObjectId> ids) {
  if (!ids.empty()) push({nullptr, nullptr, {ids.begin(), ids.end()}, {}});
}

void Announcer::retry(std::vector<ObjectId> ids) {
  if (ids.empty() || ids.size() > kMostRetries) return;
  push({nullptr, nullptr, {}, std::move(ids)});
}

void Announcer::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closed_ || !jobs_.empty(); });  // a worker's rest: close() ends it
    if (closed_) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    handle(job);
    lock.lock();
  }
}

void Announcer::handle(const Job& job) {
  if (job.only) announce_to(job.only);
  if (job.before) announce_moved(*job.before);
  if (!job.again.empty()) announce_again(job.again);
  if (!job.gone.empty()) tell_gone(job.gone);
}

void Announcer::add(Batches& batches, const std::shared_ptr<MemberLink>& owner, const ObjectId& id, const Held& held) {
  auto& [link, announce] = batches[owner.get()];
  link = owner;
  announce.items.push_back(
      {id, held.digest, held.bytes, static_cast<std::uint8_t>(std::clamp<std::uint32_t>(held.replicas, 1, UINT8_MAX))});
}

bool Announcer::send(const std::shared_ptr<MemberLink>& link, const Announce& announce) {
  const auto answer = core_.cluster->call(link, announce, deadline_in(kPatience));
  if (!answer.ok() || (*answer)->results.size() != announce.items.size()) return false;
  core_.counters.add(NodeCounters::kAnnounced, announce.items.size());
  for (std::size_t i = 0; i < announce.items.size(); ++i) {
    const Announce::Said said = (*answer)->results[i].said;
    if (said == Announce::Said::kTaken) continue;
    core_.store->remove(announce.items[i].id);
    const bool removed = said == Announce::Said::kRemoved;
    core_.counters.add(removed ? NodeCounters::kDroppedRemoved : NodeCounters::kDroppedConflicts);
  }
  return true;
}

// A member that does not take it is told all when it is up again.
void Announcer::flush(Batches& batches) {
  for (auto& [owner, batch] : batches) {
    if (!batch.second.items.empty()) (void)send(batch.first, batch.second);
    batch.second.items.clear();
  }
}

void Announcer::announce_held(const ClusterView& view,
                              const std::function<std::shared_ptr<MemberLink>(const ObjectId&)>& owner_of,
                              Batches& batches) {
  core_.store->for_each([&](const ObjectId& id, const Held& held) {
    const auto owner = owner_of(id);
    if (!owner || owner->is_self || !owner->is_up()) return true;
    add(batches, owner, id, held);
    auto& batch = batches[owner.get()];
    if (batch.second.items.size() >= kBatch) {
      (void)send(batch.first, batch.second);
      batch.second.items.clear();
    }
    return core_.cluster->view().get() == &view;  // a newer one has a job of its own
  });
  flush(batches);
}

void Announcer::say_settled(const std::shared_ptr<MemberLink>& link, std::uint64_t fingerprint) {
  Announce settled;
  settled.settled_view = fingerprint;
  (void)send(link, settled);
}

// What was removed while its owner was away, and this node acted as such: the owner may hold it still.
void Announcer::hand_over_removals(const ClusterView& view, const std::shared_ptr<MemberLink>& link) {
  const auto ids = core_.directory.removed([&](const ObjectId& id) { return view.owner(id) == link; });
  for (std::size_t first = 0; first < ids.size(); first += kMaxIds) {
    const auto part = std::span(ids).subspan(first, std::min(kMaxIds, ids.size() - first));
    if (!core_.cluster->call(link, Drop{{part.begin(), part.end()}}, deadline_in(kPatience)).ok()) return;
    core_.directory.forget_removed(part);
  }
}

void Announcer::announce_to(const std::shared_ptr<MemberLink>& link) {
  const auto view = core_.cluster->view();
  hand_over_removals(*view, link);
  Batches batches;
  announce_held(
      *view, [&](const ObjectId& id) { return view->owner(id) == link ? link : nullptr; }, batches);
  if (core_.cluster->view() == view) say_settled(link, view->fingerprint);
}

void Announcer::announce_moved(const ClusterView& before) {
  const auto view = core_.cluster->view();
  Batches batches;
  announce_held(
      *view,
      [&](const ObjectId& id) -> std::shared_ptr<MemberLink> {
        const auto& owner = view->owner(id);
        return owner == before.owner(id) ? nullptr : owner;
      },
      batches);
  if (core_.cluster->view() != view) return;
  for (const auto& link : view->links) {
    if (link->is_self) {
      link->settled.store(view->fingerprint, std::memory_order_release);
    } else if (link->is_up()) {
      say_settled(link, view->fingerprint);
    }
  }
}

void Announcer::announce_again(const std::vector<ObjectId>& ids) {
  const auto view = core_.cluster->view();
  Batches batches;
  std::vector<ObjectId> later;
  for (const ObjectId& id : ids) {
    const auto held = core_.store->find(id);
    const auto owner = view->acting_owner(id);
    if (!held || owner->is_self) continue;
    add(batches, owner, id, *held);
  }
  for (auto& [owner, batch] : batches) {
    batch.second.fresh = true;
    for (std::size_t first = 0; first < batch.second.items.size(); first += kBatch) {
      Announce part{true, 0, {}};
      const auto begin = batch.second.items.begin() + static_cast<std::ptrdiff_t>(first);
      part.items.assign(begin,
                        begin + static_cast<std::ptrdiff_t>(std::min(kBatch, batch.second.items.size() - first)));
      if (send(batch.first, part)) continue;
      for (const Announce::Item& item : part.items) later.push_back(item.id);
    }
  }
  if (later.empty()) return;
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, kRetryPause, [&] { return closed_; })) return;
  jobs_.push_back({nullptr, nullptr, {}, std::move(later)});
}

void Announcer::tell_gone(const std::vector<ObjectId>& ids) {
  const auto view = core_.cluster->view();
  std::map<MemberLink*, std::pair<std::shared_ptr<MemberLink>, Retract>> parts;
  for (const ObjectId& id : ids) {
    const auto owner = view->acting_owner(id);
    if (owner->is_self || core_.store->find(id)) continue;  // put again meanwhile
    auto& [link, retract] = parts[owner.get()];
    link = owner;
    retract.ids.push_back(id);
  }
  for (auto& [owner, part] : parts) {
    for (std::size_t first = 0; first < part.second.ids.size(); first += kMaxIds) {
      Retract some;
      const auto begin = part.second.ids.begin() + static_cast<std::ptrdiff_t>(first);
      some.ids.assign(begin, begin + static_cast<std::ptrdiff_t>(std::min(kMaxIds, part.second.ids.size() - first)));
      // One that does not hear it forgets all of this node's when the connection is made anew.
      (void)core_.cluster->call(part.first, some, deadline_in(kPatience));
      // A put that was announced before the owner heard this is known to nobody now.
      std::vector<ObjectId> here;
      std::ranges::copy_if(some.ids, std::back_inserter(here),
                           [&](const auto& id) { return core_.store->contest(id); });
      retry(std::move(here));
    }
  }
}

}  // namespace kvferry::store
