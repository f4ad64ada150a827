#include "store/client/queries.h"

#include <algorithm>
#include <map>
#include <set>

#include "store/client/where.h"

namespace kvferry::store {
namespace {

constexpr std::size_t kMatchStep = 64;  // ids looked up between two looks at whether the match has ended

// Whether all there is lies with the node whose memory we see. To be asked before the look there.
bool is_alone(ClientCore& core, const Home* here) {
  return here != nullptr && here->reader()->knows_all() && core.links->members()->all.size() <= 1;
}

const Home* in_place(const Result<std::shared_ptr<Home>>& home) {
  return home.ok() && (*home)->reader() != nullptr ? home->get() : nullptr;
}

// Asks all members the same, also those that are passed over, so that none is left out without a word; take(answer) for
// each. The first failure, if there was one.
template <typename Request, typename Take>
Status ask_all(ClientCore& core, const Request& request, Deadline deadline, Take take) {
  KVF_RETURN_IF_ERROR(core.usable());
  Status failure;
  std::vector<std::pair<NodeId, RpcEndpoint::Call<Request>>> calls;
  const auto roster = core.links->members();  // kept: a node that fails makes a new one
  for (const Member& member : roster->all) {
    const auto connection = core.links->to(member.node_id, deadline);
    if (connection.ok()) {
      calls.emplace_back(member.node_id, core.rpc->start((*connection)->handle(), request, deadline));
    } else if (failure.ok()) {
      failure = connection.status();
    }
  }
  for (auto& [node, call] : calls) {
    auto answer = call.finish();
    if (answer.ok()) {
      take(node, *answer);
    } else if (failure.ok()) {
      failure = answer.status().with_context("asking node " + node.to_string());
    }
  }
  return failure;
}

// As exists() of the index, but sure of what was put without a message, too.
Status exists_here(ClientCore& core, const Home& here, std::span<const ObjectId> ids, std::span<std::uint8_t> found,
                   Deadline deadline) {
  const bool waiting = here.reader()->puts_waiting();
  here.reader()->exists(ids, found);
  if (!waiting || std::all_of(found.begin(), found.end(), [](std::uint8_t there) { return there != 0; })) return {};
  KVF_RETURN_IF_ERROR(here.catch_up(core, deadline));
  here.reader()->exists(ids, found);
  return {};
}

Result<std::optional<Held>> find_here(ClientCore& core, const Home& here, const ObjectId& id, Deadline deadline) {
  const bool waiting = here.reader()->puts_waiting();
  auto held = here.reader()->find(id);
  if (held || !waiting) return held;
  KVF_RETURN_IF_ERROR(here.catch_up(core, deadline));
  return here.reader()->find(id);
}

}  // namespace

Status exists(ClientCore& core, std::span<const ObjectId> ids, std::span<std::uint8_t> found, Deadline deadline) {
  const auto home = core.home(deadline);
  const Home* here = in_place(home);
  const bool alone = is_alone(core, here);
  std::fill(found.begin(), found.end(), std::uint8_t{0});
  if (here != nullptr) KVF_RETURN_IF_ERROR(exists_here(core, *here, ids, found, deadline));
  if (alone || std::all_of(found.begin(), found.end(), [](std::uint8_t there) { return there != 0; })) {
    return {};
  }
  if (!home.ok() && core.links->members()->all.empty()) return home.status();
  return exists_anywhere(core, ids, found, deadline);
}

Result<std::uint64_t> match_prefix(ClientCore& core, std::span<const ObjectId> ids, Deadline deadline) {
  const auto home = core.home(deadline);
  const Home* here = in_place(home);
  const bool alone = is_alone(core, here);
  std::vector<std::uint8_t> found(ids.size());
  std::size_t matched = 0;
  if (here != nullptr) {
    bool whole = true;
    for (std::size_t first = 0; first < ids.size() && whole; first += kMatchStep) {
      const std::size_t count = std::min(kMatchStep, ids.size() - first);
      KVF_RETURN_IF_ERROR(
          exists_here(core, *here, ids.subspan(first, count), std::span(found).subspan(first, count), deadline));
      while (matched < first + count && found[matched] != 0) ++matched;
      whole = matched == first + count;
    }
    here->reader()->accessed(ids.first(matched));
  }
  if (matched == ids.size() || alone) return matched;
  if (!home.ok() && core.links->members()->all.empty()) return home.status();
  const auto rest = ids.subspan(matched);
  const auto rest_found = std::span(found).subspan(matched);
  if (here != nullptr) here->reader()->exists(rest, rest_found);
  KVF_RETURN_IF_ERROR(exists_anywhere(core, rest, rest_found, deadline));
  while (matched < ids.size() && found[matched] != 0) ++matched;
  return matched;
}

std::vector<Result<std::uint64_t>> sizes(ClientCore& core, std::span<const ObjectId> ids, Deadline deadline) {
  const Status absent{Code::kNotFound, "there is no such object"};
  std::vector<Result<std::uint64_t>> out(ids.size(), absent);
  const auto home = core.home(deadline);
  const Home* here = in_place(home);
  const bool alone = is_alone(core, here);
  std::vector<ObjectId> unknown;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Result<std::optional<Held>> held =
        here != nullptr ? find_here(core, *here, ids[i], deadline) : std::optional<Held>();
    if (!held.ok()) {
      out[i] = held.status();
    } else if (held->has_value()) {
      out[i] = (*held)->bytes;
    } else {
      unknown.push_back(ids[i]);
      places.push_back(i);
    }
  }
  if (unknown.empty() || alone) return out;
  const bool nobody = !home.ok() && core.links->members()->all.empty();
  auto found = nobody ? Result<std::vector<Found>>(home.status()) : where(core, unknown, deadline);
  for (std::size_t i = 0; i < unknown.size(); ++i) {
    if (!found.ok()) {
      out[places[i]] = found.status();
    } else if ((*found)[i].found) {
      out[places[i]] = (*found)[i].bytes;
    }
  }
  return out;
}

std::vector<Status> remove(ClientCore& core, std::span<const ObjectId> ids, Deadline deadline) {
  if (Status bad = core.usable(); !bad.ok()) return {ids.size(), bad};
  const auto home = core.home(deadline);
  if (!home.ok() && core.links->members()->all.empty()) return {ids.size(), home.status()};
  return remove_everywhere(core, ids, deadline);
}

Result<std::uint64_t> remove_tag(ClientCore& core, std::string_view tag, Deadline deadline) {
  const auto home = core.home(deadline);
  if (!home.ok() && core.links->members()->all.empty()) return home.status();
  std::set<ObjectId> ids;
  WithTag request;
  request.tenant = core.options.tenant;
  request.tag = tag;
  Status unasked;  // what the others have goes all the same
  for (bool more = true; more && unasked.ok();) {
    more = false;
    ObjectId last;
    unasked = ask_all(core, request, deadline, [&](const NodeId&, const Received<WithTag>& answer) {
      ids.insert(answer->ids.begin(), answer->ids.end());
      if (!answer->more || answer->ids.empty()) return;
      last = more ? std::min(last, answer->ids.back()) : answer->ids.back();  // where the shortest answer was cut
      more = true;
    });
    request.after = last;
  }
  const std::vector<ObjectId> all(ids.begin(), ids.end());
  for (const Status& status : remove(core, all, deadline)) KVF_RETURN_IF_ERROR(status);
  KVF_RETURN_IF_ERROR(unasked);
  return all.size();
}

Result<std::vector<ObjectInfo>> list(ClientCore& core, const List& request, Deadline deadline) {
  const auto home = core.home(deadline);
  if (!home.ok() && core.links->members()->all.empty()) return home.status();
  List ask = request;
  std::map<std::string, ObjectInfo> merged;
  for (bool more = true; more && merged.size() < request.limit;) {
    more = false;
    std::string last;
    Status failure = ask_all(core, ask, deadline, [&](const NodeId&, const Received<List>& answer) {
      for (const ObjectInfo& info : answer->objects) merged.emplace(info.key, info);
      if (!answer->more || answer->objects.empty()) return;
      const std::string& end = answer->objects.back().key;
      last = more ? std::min(last, end) : end;  // where the shortest answer was cut
      more = true;
    });
    KVF_RETURN_IF_ERROR(failure);
    // What other nodes told beyond the shortest answer comes again: nothing between may be left out.
    if (more) merged.erase(merged.upper_bound(last), merged.end());
    ask.after = last;
  }
  std::vector<ObjectInfo> out;
  for (auto& [key, info] : merged) {
    if (out.size() == request.limit) break;
    out.push_back(std::move(info));
  }
  return out;
}

}  // namespace kvferry::store
