#include "store/publisher.h"

#include <algorithm>
#include <map>
#include <thread>

namespace kvferry::store {
namespace {

constexpr int kAttempts = 3;  // to find an owner that answers
constexpr int kQuickRounds = 8;
constexpr milliseconds kPause{1};  // between further ones: somebody removes it again and again

Status conflict() { return {Code::kConflict, "other bytes are stored under that key, and objects are written once"}; }

Announce::Item item_of(const Directory::Announced& object) {
  return {object.id, object.digest, object.bytes,
          static_cast<std::uint8_t>(std::clamp<std::uint32_t>(object.replicas, 1, UINT8_MAX))};
}

}  // namespace

bool Publisher::is_quick(std::span<const Claim> claims) const {
  const auto view = core_.cluster->view();
  return std::ranges::all_of(claims,
                             [&](const Claim& claim) { return core_.is_authoritative(*view, claim.object.id); });
}

void Publisher::publish(std::span<Claim> claims, Deadline deadline) {
  const auto all_done = [&] { return std::ranges::all_of(claims, &Claim::done); };
  std::vector<ObjectId> late;
  for (int round = 0; !all_done(); ++round) {
    if (round >= kQuickRounds) std::this_thread::sleep_for(kPause);
    try_once(core_.cluster->view(), claims, deadline);
    const bool last = expired(deadline);
    for (Claim& claim : claims) {
      if (!claim.done && claim.silences >= (last ? 1 : kAttempts)) commit_untold(claim, &late);
      if (!claim.done && last) {
        refuse(claim, {Code::kUnavailable, "it was removed again and again while it was being put"});
      }
    }
  }
  announcer_.tell(std::move(late));
}

// Rather visible and told late than lost: what this node holds must be found as long as it lives.
void Publisher::commit_untold(Claim& claim, std::vector<ObjectId>* late) {
  if (!commit(claim)) {
    claim.silences = 0;  // somebody has asked for its removal: there is an owner again
    return;
  }
  if (!claim.status.ok()) return;
  core_.counters.add(NodeCounters::kUnannounced);
  late->push_back(claim.object.id);
}

void Publisher::try_once(const std::shared_ptr<const ClusterView>& view, std::span<Claim> claims, Deadline deadline) {
  struct Part {
    std::shared_ptr<MemberLink> link;
    std::vector<Claim*> claims;
  };
  std::map<const MemberLink*, Part> parts;
  for (Claim& claim : claims) {
    if (claim.done) continue;
    if (const Status may = claim.copied ? core_.may_copy(claim.object.id, *claim.copied) : Status(); !may.ok()) {
      refuse(claim, may);
      continue;
    }
    const auto owner = view->acting_owner(claim.object.id);
    Part& part = parts[owner.get()];
    part.link = owner;
    part.claims.push_back(&claim);
  }
  std::vector<std::pair<Part*, Cluster::Asked<Announce>>> asked;
  for (auto& [link, part] : parts) {
    if (part.link->is_self) continue;
    Announce announce;
    announce.fresh = part.claims.front()->object.fresh;
    for (const Claim* claim : part.claims) {
      const auto& object = claim->object;
      announce.items.push_back(item_of(object));
      core_.claims.add(object.id, {object.bytes, object.digest, Tier::kDram, object.replicas});
    }
    asked.emplace_back(&part, core_.cluster->ask(part.link, announce, deadline));
  }
  for (auto& [link, part] : parts) {
    if (part.link->is_self) claim_here(*view, part.claims, deadline);
  }
  for (auto& [part, call] : asked) {
    const auto answer = core_.cluster->answer(call);
    const bool said = answer.ok() && (*answer)->results.size() == part->claims.size();
    for (std::size_t i = 0; i < part->claims.size(); ++i) {
      Claim& claim = *part->claims[i];
      if (said) {
        settle(claim, (*answer)->results[i]);
      } else {
        ++claim.silences;
      }
      core_.claims.remove(claim.object.id, claim.object.digest);
    }
  }
}

// Whether what the directory says, or cannot say yet, needs to be asked of the others.
bool Publisher::needs_asking(const ClusterView& view, const Directory::Announced& object) const {
  if (!core_.is_authoritative(view, object.id)) return object.fresh;
  const auto known = core_.directory.find(object.id);
  return known && known->digest != object.digest;
}

std::vector<bool> Publisher::find_conflicts(const ClusterView& view, std::span<const Directory::Announced> objects,
                                            const NodeId& asker, Deadline deadline) {
  std::vector<ObjectId> ids;
  std::vector<std::size_t> places;
  std::vector<bool> conflicts(objects.size(), false);
  for (std::size_t i = 0; i < objects.size(); ++i) {
    if (!needs_asking(view, objects[i])) continue;
    ids.push_back(objects[i].id);
    places.push_back(i);
  }
  if (ids.empty()) return conflicts;
  const auto said = finder_.verify(view, ids, deadline);
  for (std::size_t n = 0; n < ids.size(); ++n) {
    const Directory::Announced& object = objects[places[n]];
    // All claims come here, and one after the other, but for those that are still made by other members' lights.
    const bool all_here = core_.is_authoritative(view, object.id);
    conflicts[places[n]] = std::ranges::any_of(said[n], [&](const Reply& reply) {
      if (reply.held.digest == object.digest || (reply.pending && reply.node == asker)) return false;
      return !reply.pending || !all_here;
    });
  }
  return conflicts;
}

// This node is the owner. While it does not yet know all that others hold, it asks them.
void Publisher::claim_here(const ClusterView& view, std::span<Claim*> claims, Deadline deadline) {
  std::vector<Directory::Announced> objects;
  for (const Claim* claim : claims) objects.push_back(claim->object);
  const std::vector<bool> conflicts = find_conflicts(view, objects, core_.self.node_id, deadline);
  for (std::size_t i = 0; i < claims.size(); ++i) {
    Claim& claim = *claims[i];
    if (conflicts[i]) {
      refuse(claim, conflict());
      continue;
    }
    claim.object.alone = claim.object.fresh && !core_.hears_all(view, claim.object.id);
    const auto [added, holders, again] = core_.directory.claim(claim.object, [&] { (void)commit(claim); });
    if (again) removals_.tell_soon();
    if (again && claim.done && claim.status.ok()) core_.put_again.put(claim.object.id, Clock::now());
    if (added == Directory::Added::kConflict) refuse(claim, conflict());
    if (added == Directory::Added::kRemoved) refuse(claim, {Code::kNotFound, "it was removed meanwhile"});
    const auto others = core_.directory.find(claim.object.id);
    if (claim.done && claim.status.ok() && others) {
      claim.replicas += static_cast<std::uint32_t>(others->holders.size());
      claim.created = false;
    }
  }
}

void Publisher::settle(Claim& claim, const Announce::Done& done) {
  switch (done.said) {
    case Announce::Said::kConflict:
      return refuse(claim, conflict());
    case Announce::Said::kRemoved:
      return refuse(claim, {Code::kNotFound, "it was removed meanwhile"});
    case Announce::Said::kTakenAgain:
      core_.put_again.put(claim.object.id, Clock::now());
      break;
    case Announce::Said::kTaken:
      break;
  }
  core_.counters.add(NodeCounters::kAnnounced);
  claim.silences = 0;
  if (!commit(claim)) return;
  if (!claim.status.ok()) return announcer_.tell({claim.object.id});  // the owner believes that it is here
  claim.replicas = std::max<std::uint32_t>(done.holders, 1);
  if (done.holders > 1) claim.created = false;
}

// False: the object was removed since it was announced, or the owner may have forgotten that it was: once more.
bool Publisher::commit(Claim& claim) {
  const auto committed = core_.store->commit(claim.session, claim.put, claim.object.digest);
  if (committed.status().code() == Code::kStale) return false;
  claim.done = true;
  claim.status = committed.status();
  claim.created = committed.ok() && *committed;
  claim.replicas = committed.ok() ? 1 : 0;
  return true;
}

void Publisher::refuse(Claim& claim, Status why) {
  core_.store->abort(claim.session, claim.put);
  claim.done = true;
  claim.status = std::move(why);
}

}  // namespace kvferry::store
