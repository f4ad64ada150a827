#include "store/announcer.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

namespace kvferry::store {
namespace {

constexpr std::size_t kBatch = 2048;
constexpr milliseconds kPatience{5000};
constexpr milliseconds kRetryPause{200}, kCatchUpPause{20};
constexpr std::size_t kMostIds = 1u << 20;  // waiting to be told
constexpr std::size_t kMostViews = 16;      // remembered for one member; beyond it is told all

Announce::Item item_of(const ObjectId& id, const Held& held) {
  return {id, held.digest, held.bytes,
          static_cast<std::uint8_t>(std::clamp<std::uint32_t>(held.replicas, 1, UINT8_MAX))};
}

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

void Announcer::member_up(const std::shared_ptr<MemberLink>& link) {
  {
    const std::lock_guard lock(mutex_);
    news_.push_back({link, nullptr});
  }
  changed_.notify_one();
}

void Announcer::view_will_change(const ClusterView& before, const std::vector<Member>& members) {
  Announce change;
  change.settled_view = Announce::kChanges;
  std::vector<Cluster::Asked<Announce>> asked;
  for (const auto& link : before.links) {
    if (link->is_self || !link->is_up()) continue;
    asked.push_back(core_.cluster->ask(link, change, deadline_in(core_.cluster->patience())));
  }
  for (auto& one : asked) {
    const Status answered = one.call ? one.call->finish().status() : Status();
    const bool stays = std::ranges::find(members, one.link->member.node_id, &Member::node_id) != members.end();
    const bool silent = answered.code() == Code::kPeerLost || answered.code() == Code::kDeadlineExceeded;
    if (silent && stays) core_.cluster->suspect(one.link, one.handle, answered);
  }
}

void Announcer::view_changed(std::shared_ptr<const ClusterView> before) {
  {
    const std::lock_guard lock(mutex_);
    news_.push_back({nullptr, std::move(before)});
  }
  changed_.notify_one();
}

void Announcer::tell(std::vector<ObjectId> ids) {
  if (ids.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    if (ids_.size() + ids.size() > kMostIds) return;
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }
  changed_.notify_one();
}

std::optional<Clock::time_point> Announcer::next_work() const {
  std::optional<Clock::time_point> next;
  for (const auto& [node, debt] : debts_) {
    if (debt.link->is_up() && (!next || debt.not_before < *next)) next = debt.not_before;
  }
  if (!again_.empty() && (!next || again_at_ < *next)) next = again_at_;
  return next;
}

void Announcer::run() {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    const std::optional<Clock::time_point> next = next_work();
    const auto awake = [&] { return closed_ || !news_.empty() || !ids_.empty(); };
    if (next) {
      changed_.wait_until(lock, *next, awake);
    } else {
      changed_.wait(lock, awake);  // a worker's rest: close() ends it
    }
    if (closed_) return;
    const std::deque<News> news = std::exchange(news_, {});
    std::vector<ObjectId> ids = std::exchange(ids_, {});
    if (Clock::now() >= again_at_) {
      ids.insert(ids.end(), again_.begin(), again_.end());
      again_.clear();
    }
    lock.unlock();
    for (const News& one : news) take(one);
    pay_debts();
    std::vector<ObjectId> failed = tell_owners(ids);
    lock.lock();
    if (failed.empty()) continue;
    again_.insert(again_.end(), failed.begin(), failed.end());
    again_at_ = Clock::now() + kRetryPause;
  }
}

void Announcer::take(const News& news) {
  if (news.before) view_has_changed(news.before);
  if (!news.up || core_.cluster->view()->find(news.up->member.node_id) != news.up) return;
  Debt& debt = debts_[news.up->member.node_id];
  debt.link = news.up;
  debt.all = true;
  debt.not_before = {};
}

void Announcer::view_has_changed(const std::shared_ptr<const ClusterView>& before) {
  const auto view = core_.cluster->view();
  std::erase_if(debts_, [&](const auto& one) { return view->find(one.first) != one.second.link; });
  for (const auto& link : view->links) {
    if (link->is_self) {
      link->settled.store(view->fingerprint, std::memory_order_release);
      continue;
    }
    Debt& debt = debts_[link->member.node_id];
    debt.link = link;
    debt.not_before = {};
    debt.since.push_back(before);
    debt.all = debt.all || debt.since.size() > kMostViews;
    if (debt.all) debt.since.clear();
  }
}

// The debts that can be paid now: of members that are up, and know the members that this node knows.
std::vector<Announcer::Debt*> Announcer::due(const ClusterView& view) {
  std::vector<std::pair<Debt*, Cluster::Asked<Ping>>> asked;
  for (auto& [node, debt] : debts_) {
    if (!debt.link->is_up() || debt.not_before > Clock::now() || view.find(node) != debt.link) continue;
    asked.emplace_back(&debt, core_.cluster->ask(debt.link, Ping{}, deadline_in(kPatience)));
  }
  std::vector<Debt*> out;
  for (auto& [debt, call] : asked) {
    const auto answer = core_.cluster->answer(call);
    debt->failed = false;
    debt->not_before = Clock::now() + (answer.ok() ? kCatchUpPause : kRetryPause);
    if (answer.ok() && (*answer)->view == view.fingerprint && begin(view, *debt)) out.push_back(debt);
  }
  return out;
}

// Whoever is told all hears first that it begins: what was said before that does not count any more. What was removed
// comes before what is held: the owner may hold it still, or believe whoever missed it.
bool Announcer::begin(const ClusterView& view, const Debt& debt) {
  if (debt.all) {
    Announce begins;
    begins.settled_view = Announce::kTellsAll;
    if (!send(debt.link, begins)) return false;
  }
  return removals_.hand_over(view, debt.link, debt.all) && removals_.entrust(view, debt.link);
}

void Announcer::pay_debts() {
  const auto view = core_.cluster->view();
  const std::vector<Debt*> debts = due(*view);
  if (debts.empty()) return;
  // Puts under way are not among what is held: whoever was told of them may have forgotten, or be the owner no more.
  core_.store->contest_puts();
  if (!announce_held(view, debts)) return;  // another view: there is news of it
  for (Debt* debt : debts) {
    if (!debt->failed && say_settled(view, *debt)) {
      debts_.erase(debt->link->member.node_id);
    } else {
      debt->not_before = Clock::now() + kRetryPause;
    }
  }
}

// Not after it was told that the members change.
bool Announcer::say_settled(const std::shared_ptr<const ClusterView>& view, const Debt& debt) {
  const std::lock_guard unchanged(core_.members_mutex);
  if (core_.cluster->view() != view) return false;
  Announce settled;
  settled.settled_view = view->fingerprint;
  return core_.cluster->call(debt.link, settled, deadline_in(core_.cluster->patience())).ok();
}

// False: the members changed meanwhile.
bool Announcer::announce_held(const std::shared_ptr<const ClusterView>& view, const std::vector<Debt*>& debts) {
  std::map<const MemberLink*, Debt*> by_link;
  for (Debt* debt : debts) {
    debt->batch = {};
    by_link[debt->link.get()] = debt;
  }
  core_.store->for_each([&](const ObjectId& id, const Held& held) {
    const auto& owner = view->owner(id);
    const auto found = by_link.find(owner.get());
    if (found == by_link.end() || found->second->failed) return true;
    Debt& debt = *found->second;
    const auto knew = [&](const auto& before) { return before->owner(id) == owner; };
    if (!debt.all && std::ranges::all_of(debt.since, knew)) return true;
    debt.batch.items.push_back(item_of(id, held));
    if (debt.batch.items.size() >= kBatch) debt.failed = !flush(debt);
    return core_.cluster->view() == view;
  });
  for (Debt* debt : debts) debt->failed = debt->failed || !flush(*debt);
  return core_.cluster->view() == view;
}

bool Announcer::flush(Debt& debt) {
  const bool sent = debt.batch.items.empty() || send(debt.link, debt.batch);
  debt.batch.items.clear();
  return sent;
}

bool Announcer::send(const std::shared_ptr<MemberLink>& link, const Announce& announce) {
  const auto answer = core_.cluster->call(link, announce, deadline_in(kPatience));
  if (!answer.ok() || (*answer)->results.size() != announce.items.size()) return false;
  core_.counters.add(NodeCounters::kAnnounced, announce.items.size());
  return take_answer(link, announce, **answer);
}

bool Announcer::take_answer(const std::shared_ptr<MemberLink>& link, const Announce& announce,
                            const Announce::Answer& answer) {
  Announce again;
  again.put_again = true;
  for (std::size_t i = 0; i < announce.items.size(); ++i) {
    const Announce::Item& item = announce.items[i];
    const Announce::Said said = answer.results[i].said;
    if (said == Announce::Said::kTaken) continue;
    if (said == Announce::Said::kTakenAgain) {
      core_.put_again.put(item.id, Clock::now());
    } else if (said == Announce::Said::kRemoved && !announce.put_again && core_.put_again.find(item.id)) {
      again.items.push_back(item);  // by its lights: it was away when this was put
    } else {
      core_.store->remove(item.id);
      const bool removed = said == Announce::Said::kRemoved;
      core_.counters.add(removed ? NodeCounters::kDroppedRemoved : NodeCounters::kDroppedConflicts);
    }
  }
  return again.items.empty() || send(link, again);
}

// Those that must be told again.
std::vector<ObjectId> Announcer::tell_owners(const std::vector<ObjectId>& ids) {
  struct Part {
    std::shared_ptr<MemberLink> owner;
    std::vector<Announce::Item> here;
    std::vector<ObjectId> gone;
  };
  const auto view = core_.cluster->view();
  std::map<const MemberLink*, Part> parts;
  for (const ObjectId& id : ids) {
    const auto owner = view->acting_owner(id);
    if (owner->is_self) continue;
    Part& part = parts[owner.get()];
    part.owner = owner;
    if (const auto held = core_.store->find(id)) {
      part.here.push_back(item_of(id, *held));
    } else {
      part.gone.push_back(id);
    }
  }
  std::vector<ObjectId> again;
  const auto add = [&](const std::vector<ObjectId>& some) { again.insert(again.end(), some.begin(), some.end()); };
  for (auto& [link, part] : parts) {
    add(tell_here(part.owner, std::move(part.here)));
    add(tell_gone(part.owner, std::move(part.gone)));
  }
  return again;
}

std::vector<ObjectId> Announcer::tell_here(const std::shared_ptr<MemberLink>& owner,
                                           std::vector<Announce::Item> items) {
  std::vector<ObjectId> again;
  for (std::size_t first = 0; first < items.size(); first += kBatch) {
    const auto part = std::span(items).subspan(first, std::min(kBatch, items.size() - first));
    const bool told = send(owner, Announce{true, 0, {part.begin(), part.end()}});
    for (const Announce::Item& item : part) {
      if (!told || !core_.store->find(item.id)) again.push_back(item.id);  // or it has left again
    }
  }
  return again;
}

std::vector<ObjectId> Announcer::tell_gone(const std::shared_ptr<MemberLink>& owner, std::vector<ObjectId> ids) {
  std::vector<ObjectId> again;
  for (std::size_t first = 0; first < ids.size(); first += kMaxIds) {
    Retract gone;
    for (const ObjectId& id : std::span(ids).subspan(first, std::min(kMaxIds, ids.size() - first))) {
      // A put of it must not be announced before this, and become visible after it.
      (core_.store->hold_puts_back(id) ? gone.ids : again).push_back(id);
    }
    // An owner that does not hear it forgets all of this node's when the connection is made anew.
    if (!gone.ids.empty()) (void)core_.cluster->call(owner, gone, deadline_in(kPatience));
    for (const ObjectId& id : gone.ids) core_.store->release_puts(id);
  }
  return again;
}

}  // namespace kvferry::store
