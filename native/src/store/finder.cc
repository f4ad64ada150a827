#include "store/finder.h"

#include <algorithm>
#include <map>

namespace kvferry::store {
namespace {

void add_holder(std::optional<Found>& found, const Held& held, const NodeId& holder) {
  if (!found) found = Found{held.bytes, held.digest, held.replicas, {}};
  // Other bytes than the first one's: one of them will be dropped. A reader gets one object, never of two.
  if (found->digest == held.digest) found->holders.push_back(holder);
}

std::optional<Found> found_of(const std::vector<Reply>& replies) {
  std::optional<Found> found;
  for (const Reply& reply : replies) {
    if (!reply.pending) add_holder(found, reply.held, reply.node);
  }
  return found;
}

}  // namespace

std::optional<Found> Finder::here(const ClusterView& view, const ObjectId& id) const {
  std::optional<Found> found;
  if (const auto held = core_.store->find(id)) add_holder(found, *held, core_.self.node_id);
  const auto location = core_.directory.find(id);
  if (!location) return found;
  if (!found) found = Found{location->bytes, location->digest, location->replicas, {}};
  std::vector<NodeId> down;
  for (const HolderIndex index : location->holders) {
    const NodeId node = core_.names.node(index);
    const auto link = view.find(node);
    if (link && link->is_self) continue;
    (link && link->is_up() ? found->holders : down).push_back(node);
  }
  found->holders.insert(found->holders.end(), down.begin(), down.end());
  return found;
}

std::vector<std::size_t> Finder::doubtful(const ClusterView& view, std::span<const ObjectId> ids) const {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!is_here(ids[i]) && !core_.is_authoritative(view, ids[i])) out.push_back(i);
  }
  return out;
}

void Finder::ask_all(const ClusterView& view, std::span<const ObjectId> ids, std::span<std::vector<Reply>> replies,
                     Deadline deadline, std::vector<NodeId>& silent) {
  core_.cluster->await_known(view, deadline);
  const Find find{{ids.begin(), ids.end()}};
  std::vector<Cluster::Asked<Find>> asked;
  for (const auto& link : view.links) {
    if (!link->is_self && link->is_up()) asked.push_back(core_.cluster->ask(link, find, deadline));
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (const auto held = core_.store->find(ids[i])) replies[i].push_back({core_.self.node_id, *held, false});
  }
  for (auto& one : asked) {
    const auto answer = core_.cluster->answer(one);
    if (!answer.ok() || (*answer)->results.size() != ids.size()) {
      silent.push_back(one.link->member.node_id);
      continue;
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Find::Done& done = (*answer)->results[i];
      if (done.held) replies[i].push_back({one.link->member.node_id, *done.held, done.pending});
    }
  }
}

std::vector<std::vector<Reply>> Finder::replies(const ClusterView& view, std::span<const ObjectId> ids,
                                                Deadline deadline, std::vector<NodeId>& silent) {
  core_.counters.add(NodeCounters::kAskedEverywhere, ids.size());
  std::vector<std::vector<Reply>> out(ids.size());
  for (std::size_t first = 0; first < ids.size(); first += kMaxIds) {
    const std::size_t count = std::min(kMaxIds, ids.size() - first);
    ask_all(view, ids.subspan(first, count), std::span(out).subspan(first, count), deadline, silent);
  }
  return out;
}

std::vector<std::optional<Found>> Finder::everywhere(const ClusterView& view, std::span<const ObjectId> ids,
                                                     Deadline deadline) {
  std::vector<std::optional<Found>> found;
  std::vector<NodeId> silent;
  for (const auto& of_one : replies(view, ids, deadline, silent)) found.push_back(found_of(of_one));
  return found;
}

std::vector<std::vector<Reply>> Finder::verify(const ClusterView& view, std::span<const ObjectId> ids,
                                               Deadline deadline) {
  // Looked at first: who is announced while the others are asked is not out of date.
  std::vector<std::optional<Location>> before;
  for (const ObjectId& id : ids) before.push_back(core_.directory.find(id));
  std::vector<NodeId> silent;
  auto said = replies(view, ids, deadline, silent);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto& location = before[i];
    if (!location) continue;
    for (const HolderIndex index : location->holders) {
      const NodeId node = core_.names.node(index);
      const auto link = view.find(node);
      const bool answered = std::ranges::find(silent, node) == silent.end();
      if ((link && !link->is_up()) || !answered) continue;  // it could not be asked
      const bool holds = std::ranges::any_of(said[i], [&](const Reply& reply) {
        return reply.node == node && (reply.pending || reply.held.digest == location->digest);
      });
      if (!holds) core_.directory.retract_if_unchanged(ids[i], index, location->told);
    }
  }
  return said;
}

// Those that are still unknown afterwards because their owner did not say.
std::vector<std::size_t> Finder::ask_owners(const ClusterView& view, std::span<const ObjectId> ids,
                                            std::span<const std::size_t> wanted, std::span<std::optional<Found>> found,
                                            Deadline deadline) {
  struct Question {
    std::shared_ptr<MemberLink> link;
    std::vector<std::size_t> places;
  };
  std::map<const MemberLink*, Question> by_owner;
  std::vector<std::size_t> unanswered;
  for (const std::size_t i : wanted) {
    const auto owner = view.acting_owner(ids[i]);
    if (owner->is_self) {
      unanswered.push_back(i);
      continue;
    }
    Question& question = by_owner[owner.get()];
    question.link = owner;
    question.places.push_back(i);
  }
  std::vector<std::pair<const Question*, Cluster::Asked<Lookup>>> asked;
  for (const auto& [link, question] : by_owner) {
    Lookup lookup;
    for (const std::size_t i : question.places) lookup.ids.push_back(ids[i]);
    asked.emplace_back(&question, core_.cluster->ask(question.link, lookup, deadline));
  }
  for (auto& [question, call] : asked) {
    const auto answer = core_.cluster->answer(call);
    if (!answer.ok() || (*answer)->results.size() != question->places.size()) {
      unanswered.insert(unanswered.end(), question->places.begin(), question->places.end());
      continue;
    }
    for (std::size_t n = 0; n < question->places.size(); ++n) {
      const Lookup::Done& done = (*answer)->results[n];
      if (!done.found) continue;
      Found one{done.bytes, done.digest, 1, {}};
      for (const std::uint16_t index : done.holders) {
        if (index < (*answer)->nodes.size()) one.holders.push_back((*answer)->nodes[index]);
      }
      found[question->places[n]] = std::move(one);
    }
  }
  return unanswered;
}

std::vector<std::optional<Found>> Finder::locate(std::span<const ObjectId> ids, Deadline deadline) {
  const auto view = core_.cluster->view();
  std::vector<std::optional<Found>> found(ids.size());
  std::vector<std::size_t> wanted;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    found[i] = here(*view, ids[i]);
    if (!found[i] && !core_.is_authoritative(*view, ids[i])) wanted.push_back(i);
  }
  wanted = ask_owners(*view, ids, wanted, found, deadline);
  std::vector<ObjectId> rest;
  for (const std::size_t i : wanted) rest.push_back(ids[i]);
  if (rest.empty()) return found;
  auto answers = everywhere(*view, rest, deadline);
  for (std::size_t n = 0; n < rest.size(); ++n) found[wanted[n]] = std::move(answers[n]);
  return found;
}

}  // namespace kvferry::store
