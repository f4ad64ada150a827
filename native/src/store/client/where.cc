#include "store/client/where.h"

#include <algorithm>
#include <map>
#include <optional>
#include <type_traits>

namespace kvferry::store {
namespace {

constexpr int kRounds = 4;  // owners that may fail one after the other

using Indices = std::vector<std::size_t>;

std::map<NodeId, Indices> by_owner(const Roster& cluster, std::span<const ObjectId> ids, const Indices& wanted) {
  std::map<NodeId, Indices> groups;
  for (const std::size_t index : wanted) groups[cluster.owner(ids[index])].push_back(index);
  return groups;
}

std::vector<ObjectId> pick(std::span<const ObjectId> ids, std::span<const std::size_t> indices) {
  std::vector<ObjectId> picked;
  picked.reserve(indices.size());
  for (const std::size_t index : indices) picked.push_back(ids[index]);
  return picked;
}

// Sends make(ids) to each group's node, in parts, all side by side; take(indices, answer) gets each answer.
// What could not be asked is returned, and its nodes are passed over.
template <typename Request, typename Make, typename Take>
Indices ask(ClientCore& core, std::span<const ObjectId> ids, const std::map<NodeId, Indices>& groups, Deadline deadline,
            Make make, Take take, Status* why) {
  struct Part {
    NodeId node;
    std::span<const std::size_t> indices;
    RpcEndpoint::Call<Request> call;
  };
  std::vector<Part> parts;
  Indices failed;
  // To remove an object the owner asks its holders in turn; the others answer from what they know.
  constexpr bool kTakesWork = std::is_same_v<Request, Remove>;
  const std::size_t most = kTakesWork ? kMaxObjects : kMaxIds;
  const Deadline limit = kTakesWork ? deadline : soon(core, deadline);
  for (const auto& [node, indices] : groups) {
    const auto connection = core.links->to(node, deadline);
    if (!connection.ok()) {
      *why = connection.status();
      failed.insert(failed.end(), indices.begin(), indices.end());
      continue;
    }
    for (std::size_t first = 0; first < indices.size(); first += most) {
      const auto some = std::span(indices).subspan(first, std::min(most, indices.size() - first));
      parts.push_back({node, some, core.rpc->start((*connection)->handle(), make(pick(ids, some)), limit)});
    }
  }
  for (Part& part : parts) {
    auto answer = part.call.finish();
    if (answer.ok() && take(part.node, part.indices, *answer)) continue;
    if (!answer.ok()) *why = answer.status();
    core.links->suspect(part.node);
    core.counters.failovers.fetch_add(1, std::memory_order_relaxed);
    failed.insert(failed.end(), part.indices.begin(), part.indices.end());
  }
  return failed;
}

std::map<NodeId, Indices> to_everybody(const Roster& cluster, const Indices& wanted) {
  std::map<NodeId, Indices> groups;
  for (const Member& member : cluster.alive) groups[member.node_id] = wanted;
  return groups;
}

template <typename Request>
Request about(std::vector<ObjectId> ids) {
  Request request;
  request.ids = std::move(ids);
  return request;
}

// Fills in holders of what no owner knew, from what the nodes themselves hold.
void find_holders(ClientCore& core, std::span<const ObjectId> ids, const Indices& wanted, Deadline deadline,
                  std::vector<Found>& out) {
  Status ignored;
  (void)ask<Find>(
      core, ids, to_everybody(*core.links->members(), wanted), deadline, about<Find>,
      [&](const NodeId& node, std::span<const std::size_t> indices, const Received<Find>& answer) {
        if (answer->results.size() != indices.size()) return false;
        for (std::size_t i = 0; i < indices.size(); ++i) {
          const auto& held = answer->results[i].held;
          if (!held) continue;
          Found& found = out[indices[i]];
          found = {true, held->bytes, held->digest, std::move(found.holders)};
          found.holders.push_back(node);
        }
        return true;
      },
      &ignored);
}

// Asks the owners, and whoever takes the place of one that fails, until all have answered. *troubled is set if the
// members are not all well: what an owner does not know may then be somewhere all the same.
template <typename Request, typename Make, typename Take>
Status ask_owners(ClientCore& core, std::span<const ObjectId> ids, Indices wanted, Deadline deadline, Make make,
                  Take take, bool* troubled) {
  KVF_RETURN_IF_ERROR(core.usable());
  Status why;
  for (int round = 0; round < kRounds && !wanted.empty(); ++round) {
    const auto cluster = core.links->members();
    if (cluster->alive.empty()) return {Code::kUnavailable, "no node of the cluster is known"};
    wanted = ask<Request>(core, ids, by_owner(*cluster, ids, wanted), deadline, make, take, &why);
    *troubled = *troubled || cluster->troubled() || !wanted.empty();
    if (Clock::now() >= deadline) break;
  }
  if (wanted.empty()) return {};
  KVF_RETURN_IF_ERROR(core.usable());  // closed meanwhile: nobody is to blame
  return why.with_context("no node answers where objects are");
}

template <typename Missing>
Indices indices_where(std::size_t count, Missing missing) {
  Indices indices;
  for (std::size_t i = 0; i < count; ++i) {
    if (missing(i)) indices.push_back(i);
  }
  return indices;
}

void take_found(const Lookup::Answer& answer, const Lookup::Done& done, Found& found) {
  for (const std::uint16_t holder : done.holders) {
    if (holder < answer.nodes.size()) found.holders.push_back(answer.nodes[holder]);
  }
}

}  // namespace

Result<std::vector<Found>> where(ClientCore& core, std::span<const ObjectId> ids, Deadline deadline,
                                 std::uint32_t inline_bytes,
                                 const std::function<bool(std::size_t, ByteView, const ContentDigest&)>& value) {
  std::vector<Found> out(ids.size());
  const auto take = [&](const NodeId&, std::span<const std::size_t> indices, const Received<Lookup>& answer) {
    if (answer->results.size() != indices.size()) return false;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const Lookup::Done& done = answer->results[i];
      out[indices[i]] = {done.found, done.bytes, done.digest, {}};
      const bool delivered = done.has_value && value && value(indices[i], done.value, done.digest);
      if (!delivered) take_found(*answer, done, out[indices[i]]);
    }
    return true;
  };
  const auto make = [inline_bytes](std::vector<ObjectId> some) {
    Lookup request = about<Lookup>(std::move(some));
    request.inline_bytes = inline_bytes;
    return request;
  };
  bool troubled = false;
  const Indices all = indices_where(ids.size(), [](std::size_t) { return true; });
  KVF_RETURN_IF_ERROR(ask_owners<Lookup>(core, ids, all, deadline, make, take, &troubled));
  if (!troubled) return out;
  const Indices unknown = indices_where(ids.size(), [&](std::size_t i) { return !out[i].found; });
  if (!unknown.empty()) find_holders(core, ids, unknown, deadline, out);
  return out;
}

Status exists_anywhere(ClientCore& core, std::span<const ObjectId> ids, std::span<std::uint8_t> found,
                       Deadline deadline) {
  const auto take = [&](const NodeId&, std::span<const std::size_t> indices, const Received<Exists>& answer) {
    if (answer->found.size() != indices.size()) return false;
    for (std::size_t i = 0; i < indices.size(); ++i) found[indices[i]] = answer->found[i] ? 1 : 0;
    return true;
  };
  const auto missing = [&](std::size_t i) { return found[i] == 0; };
  bool troubled = false;
  KVF_RETURN_IF_ERROR(
      ask_owners<Exists>(core, ids, indices_where(ids.size(), missing), deadline, about<Exists>, take, &troubled));
  const Indices unknown = indices_where(ids.size(), missing);
  if (!troubled || unknown.empty()) return {};
  std::vector<Found> holders(ids.size());
  find_holders(core, ids, unknown, deadline, holders);
  for (const std::size_t index : unknown) found[index] = holders[index].found ? 1 : 0;
  return {};
}

std::vector<Status> remove_everywhere(ClientCore& core, std::span<const ObjectId> ids, Deadline deadline) {
  std::vector<std::optional<Status>> results(ids.size());
  const auto take = [&](const NodeId&, std::span<const std::size_t> indices, const Received<Remove>& answer) {
    if (answer->results.size() != indices.size()) return false;
    for (std::size_t i = 0; i < indices.size(); ++i) results[indices[i]] = answer->results[i];
    return true;
  };
  bool troubled = false;
  const Indices all = indices_where(ids.size(), [](std::size_t) { return true; });
  const Status failure = ask_owners<Remove>(core, ids, all, deadline, about<Remove>, take, &troubled);
  std::vector<Status> out;
  out.reserve(ids.size());
  for (std::optional<Status>& result : results) out.push_back(result ? *std::move(result) : failure);
  return out;
}

}  // namespace kvferry::store
