// Service: the messages by which objects go everywhere and stay gone.
#include <algorithm>
#include <iterator>
#include <map>

#include "store/service.h"

namespace kvferry::store {
namespace {

constexpr milliseconds kRemoveTimeout{5000};

}  // namespace

Service::Answered<Drop> Service::on(const Asker&, const Drop& drop, Wait) {
  for (const ObjectId& id : drop.ids) drop_here(id);
  return Result<None>(None{});
}

// First what stops copies on their way, then what there is.
void Service::drop_here(const ObjectId& id) {
  core_.put_again.erase(id);
  core_.dropped.put(id, Clock::now());
  (void)core_.store->remove(id);
}

Service::Answered<Removed> Service::on(const Asker& asker, const Removed& removed, Wait wait) {
  if (removed.to == Removed::To::kKeep) {  // in the order in which they come: no thread may overtake another
    keep(asker.session->home, removed);
    return Result<None>(None{});
  }
  if (!wait) return std::nullopt;
  own(removed);
  return Result<None>(None{});
}

void Service::keep(const NodeId& owner, const Removed& removed) {
  const Clock::time_point now = Clock::now();
  for (const Removed::Item& item : removed.items) {
    if (item.again) {
      core_.dropped.erase(item.id);
      core_.directory.kept().keep_as_put_again(owner, item.id, now - item.ago);
    } else {
      core_.directory.kept().keep(owner, item.id, now - item.ago);
    }
  }
}

// Another one owned them until now, or acted as their owner. Whoever announced them meanwhile missed the removal.
void Service::own(const Removed& removed) {
  const auto view = core_.cluster->view();
  const Clock::time_point now = Clock::now();
  std::vector<ObjectId> ids;
  ByHolder by_holder;
  for (const Removed::Item& item : removed.items) {
    // It took its time to come. What was put then is rather kept.
    const Clock::time_point when = now - item.ago - core_.cluster->patience();
    const auto put = core_.put_again.find(item.id);
    if (!item.again && put && *put > when) continue;
    const std::lock_guard lock(dropping_mutex_);
    const auto holders = core_.directory.take_over({item.id, when, item.again}, [&] { drop_here(item.id); });
    if (!holders) continue;
    for (const HolderIndex holder : *holders) {
      by_holder[core_.names.node(holder)].push_back(ids.size());
      dropping_.emplace(item.id, core_.names.node(holder));
    }
    ids.push_back(item.id);
  }
  if (ids.empty()) return;
  (void)drop_at(*view, ids, by_holder, ask_strangers(*view, ids));
  removals_.tell_soon();
}

Service::Answered<Remove> Service::on(const Asker&, const Remove& remove, Wait wait) {
  const auto view = core_.cluster->view();
  const bool alone = view->members.size() == 1 && view->has_self && core_.sessions->nodes() == 0;
  if (!wait && !alone) return std::nullopt;
  return Result<Statuses>(Statuses{remove_everywhere(remove.ids, alone)});
}

// `alone`: nobody else is attached, so that there is nobody to wait for.
std::vector<Status> Service::remove_everywhere(const std::vector<ObjectId>& ids, bool alone) {
  const auto view = core_.cluster->view();
  const ByHolder by_holder = take_out(*view, ids);
  for (const ObjectId& id : ids) drop_here(id);
  core_.counters.add(NodeCounters::kRemoved, ids.size());
  auto dropped = drop_at(*view, ids, by_holder, alone ? std::vector<Stranger>() : ask_strangers(*view, ids));
  removals_.tell();
  // Whoever announced it anew before it was told may have dropped that, too.
  std::vector<ObjectId> doubtful;
  std::ranges::copy_if(ids, std::back_inserter(doubtful), [&](const auto& id) { return core_.directory.contains(id); });
  if (!doubtful.empty()) (void)finder_.verify(*view, doubtful, deadline_in(core_.cluster->patience()));
  return dropped;
}

// From the directory. Who must drop them now; also those whom somebody else has just told to, and who
// have not answered yet: this removal must not be answered before they have.
Service::ByHolder Service::take_out(const ClusterView& view, const std::vector<ObjectId>& ids) {
  const Clock::time_point now = Clock::now();
  ByHolder by_holder;
  const std::lock_guard lock(dropping_mutex_);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool sure = core_.is_authoritative(view, ids[i]);
    const auto [holders, again] = core_.directory.remove(ids[i], now);
    for (const HolderIndex holder : holders) by_holder[core_.names.node(holder)].push_back(i);
    const auto [first, last] = dropping_.equal_range(ids[i]);
    for (auto one = first; one != last; ++one) by_holder[one->second].push_back(i);
    for (const auto& link : view.links) {
      // Whoever did not hear of it the first time, because he was away, may not have told all anew yet.
      const bool heard = link->is_up() && link->settled == view.fingerprint;
      if (!link->is_self && (!sure || (again && !heard))) by_holder[link->member.node_id].push_back(i);
    }
  }
  for (auto& [holder, places] : by_holder) {
    const auto twice = std::ranges::unique(places);  // in order
    places.erase(twice.begin(), twice.end());
  }
  for (const auto& [holder, places] : by_holder) {
    for (const std::size_t i : places) dropping_.emplace(ids[i], holder);
  }
  return by_holder;
}

void Service::end_dropping(const std::vector<ObjectId>& ids, const ByHolder& by_holder) {
  const std::lock_guard lock(dropping_mutex_);
  for (const auto& [holder, places] : by_holder) {
    for (const std::size_t i : places) {
      const auto [first, last] = dropping_.equal_range(ids[i]);
      const auto found = std::find_if(first, last, [&](const auto& one) { return one.second == holder; });
      if (found != last) dropping_.erase(found);
    }
  }
}

std::vector<Status> Service::drop_at(const ClusterView& view, const std::vector<ObjectId>& ids,
                                     const ByHolder& by_holder, std::vector<Stranger> strangers) {
  std::vector<std::pair<const std::vector<std::size_t>*, Cluster::Asked<Drop>>> asked;
  for (const auto& [holder, places] : by_holder) {
    const auto link = view.find(holder);
    if (!link || link->is_self) continue;
    Drop drop;
    for (const std::size_t i : places) drop.ids.push_back(ids[i]);
    asked.emplace_back(&places, core_.cluster->ask(link, drop, deadline_in(kRemoveTimeout)));
  }
  std::vector<std::string> missed(ids.size());
  const auto note = [&](const NodeId& node, std::size_t i) {
    missed[i] += (missed[i].empty() ? "" : ", ") + node.to_string();
  };
  for (auto& [places, call] : asked) {
    if (core_.cluster->answer(call).ok()) continue;
    did_not_hear(call.link->member.node_id);
    for (const std::size_t i : *places) note(call.link->member.node_id, i);
  }
  for (const NodeId& node : silent(strangers)) {
    for (std::size_t i = 0; i < ids.size(); ++i) note(node, i);
  }
  end_dropping(ids, by_holder);
  std::vector<Status> out(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (missed[i].empty()) continue;
    out[i] = {Code::kUnavailable, "these nodes did not answer and may still hold it: " + missed[i]};
  }
  return out;
}

// One that joins, and is known to others already, may have been given copies; one that has left may have kept some.
// Each serves what it has for as long as it is attached here, or as it takes it to see that it is not.
std::vector<Service::Stranger> Service::ask_strangers(const ClusterView& view, const std::vector<ObjectId>& ids) {
  std::vector<Stranger> asked;
  const Deadline limit = deadline_in(core_.cluster->patience());
  const std::set<std::uint64_t> known = silent_ones();
  for (const auto& [node, peer] : core_.sessions->made_by_nodes()) {
    if (view.find(node)) continue;
    if (known.contains(peer)) {
      core_.rpc->owe(peer, Drop{ids});  // it may only be slow
    } else {
      asked.push_back({node, peer, core_.rpc->start(peer, Drop{ids}, limit)});
    }
  }
  return asked;
}

// Those of which nothing was heard since they did not answer, and which are attached still.
std::set<std::uint64_t> Service::silent_ones() {
  if (!some_silent_.load(std::memory_order_relaxed)) return {};
  const auto attached = core_.sessions->made_by_nodes();
  const std::lock_guard lock(dropping_mutex_);
  std::erase_if(silent_, [&](std::uint64_t peer) {
    return std::ranges::find(attached, peer, &std::pair<NodeId, std::uint64_t>::second) == attached.end();
  });
  some_silent_.store(!silent_.empty(), std::memory_order_relaxed);
  return silent_;
}

void Service::heard_of(std::uint64_t peer) {
  const std::lock_guard lock(dropping_mutex_);
  silent_.erase(peer);
  some_silent_.store(!silent_.empty(), std::memory_order_relaxed);
}

// Those that did not hear it. Whoever says nothing at all is told, but not waited for again, until something is heard
// of it: like a member that is given up, it sees that this node has ended its own connection, or that it stood still.
std::vector<NodeId> Service::silent(std::vector<Stranger>& asked) {
  std::vector<NodeId> out;
  for (Stranger& stranger : asked) {
    const Status heard = stranger.call.finish().status();
    if (heard.ok() || heard.code() == Code::kPeerLost) continue;  // lost: it has ended
    did_not_hear(stranger.node);
    out.push_back(stranger.node);
    if (heard.code() != Code::kDeadlineExceeded) continue;
    const std::lock_guard lock(dropping_mutex_);
    silent_.insert(stranger.peer);
    some_silent_.store(true, std::memory_order_relaxed);
  }
  return out;
}

// It may hold what the directory does not have any more, for as long as it has not told all anew.
void Service::did_not_hear(const NodeId& holder) {
  core_.cluster->must_tell(holder);
  caretaker_.ask_for_all(holder);
}

}  // namespace kvferry::store
