#include "store/fetcher.h"

#include <algorithm>

#include "store/runs.h"

namespace kvferry::store {
namespace {

constexpr std::uint64_t kBytesAtOnce = 32u << 20;  // pinned, reserved and read together

Status refusal(Code code, std::string why) { return {code, std::move(why)}; }
Status source_lost() { return refusal(Code::kPeerLost, "the connection to the source is lost"); }

// Clients register what they offer for one call, under ids that they had used for other memory: what the peer told
// before may be of another time.
Status know_regions(Peer& peer, std::span<const wire::PieceDescriptor> from, Deadline deadline) {
  const std::vector<RegionInfo> known = peer.regions();
  const auto is_known = [&](const wire::PieceDescriptor& piece) {
    return std::ranges::any_of(known, [&](const RegionInfo& region) { return region.key == piece.region; });
  };
  return std::ranges::all_of(from, is_known) ? Status() : peer.refresh(remaining(deadline));
}

}  // namespace

struct Fetcher::Incoming {
  ObjectId id;
  Pin::Done pinned;
  bool is_pinned = false;
  Clock::time_point asked{};  // for it
  PutId put = 0;
  std::vector<Place> places;
  std::size_t first_piece = 0, end_piece = 0;
  Status status;
  bool done = false;  // with `status`

  void end(Status why) {
    status = std::move(why);
    done = true;
  }
};

Result<std::uint64_t> Fetcher::connection_to(const NodeId& node) const {
  if (const auto link = core_.cluster->view()->find(node)) {
    if (const std::uint64_t handle = link->handle.load()) return handle;
  }
  for (const auto& peer : core_.rpc->engine().peers()) {
    if (peer->node_id() == node && peer->status().ok()) return peer->handle();
  }
  return {Code::kUnavailable, "node " + node.to_string() + " is not connected"};
}

// Both sides may be cut anywhere: a piece ends where either does.
void Fetcher::cut(std::span<const Place> to, std::span<const wire::PieceDescriptor> from,
                  std::vector<Piece>* pieces) const {
  std::size_t t = 0, f = 0;
  std::uint64_t to_done = 0, from_done = 0;
  while (t < to.size() && f < from.size()) {
    const std::uint64_t length = std::min(to[t].length - to_done, from[f].length - from_done);
    if (length > 0) {
      pieces->push_back({core_.arenas[to[t].arena].key.id, from[f].region.id, to[t].offset + to_done,
                         from[f].offset + from_done, length});
    }
    to_done += length;
    from_done += length;
    if (to_done == to[t].length) to_done = 0, ++t;
    if (from_done == from[f].length) from_done = 0, ++f;
  }
}

Status Fetcher::transfer(std::uint64_t handle, const std::vector<Piece>& pieces, Deadline deadline,
                         std::vector<Status>* results) {
  if (pieces.empty()) return {};
  Engine& engine = core_.rpc->engine();
  const auto peer = engine.peer(handle);
  if (!peer) return source_lost();
  auto plan = engine.prepare(peer, pieces, Op::kRead);
  if (plan.status().code() == Code::kNotFound) {  // registered after we connected
    KVF_RETURN_IF_ERROR(peer->refresh(remaining(deadline)));
    plan = engine.prepare(peer, pieces, Op::kRead);
  }
  if (!plan.ok()) return plan.status();
  SubmitOptions options;
  options.timeout = remaining(deadline);
  KVF_ASSIGN_OR_RETURN(const auto moved, engine.execute(*plan, std::move(options)));
  if (results != nullptr) *results = moved->piece_status();
  return results != nullptr ? Status() : moved->status();
}

Status Fetcher::read(std::uint64_t peer, std::span<const Place> to, std::span<const wire::PieceDescriptor> from,
                     Deadline deadline) {
  const auto source = core_.rpc->engine().peer(peer);
  if (!source) return source_lost();
  KVF_RETURN_IF_ERROR(know_regions(*source, from, deadline));
  std::vector<Piece> pieces;
  cut(to, from, &pieces);
  return transfer(peer, pieces, deadline, nullptr);
}

std::vector<Status> Fetcher::fetch(std::uint64_t peer, std::span<const ObjectId> ids, const FetchOptions& options,
                                   Deadline deadline) {
  std::vector<Incoming> all(ids.size());
  std::vector<Status> out;
  for (std::size_t first = 0; first < ids.size(); first += kMaxObjects) {
    Pin pin;
    pin.describe = true;
    std::vector<Incoming*> wanted;
    for (std::size_t i = first; i < std::min(ids.size(), first + kMaxObjects); ++i) {
      all[i].id = ids[i];
      all[i].asked = Clock::now();
      if (core_.store->find(ids[i])) continue;  // here already
      wanted.push_back(&all[i]);
      pin.ids.push_back(ids[i]);
    }
    if (wanted.empty()) continue;
    auto pinned = core_.rpc->call(peer, pin, deadline);
    const bool fits = pinned.ok() && (*pinned)->results.size() == wanted.size();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (!fits) {
        wanted[i]->end(pinned.ok() ? refusal(Code::kProtocolError, "an answer of another size") : pinned.status());
        continue;
      }
      wanted[i]->pinned = (*pinned)->results[i];
      wanted[i]->is_pinned = wanted[i]->pinned.status.ok();
      if (!wanted[i]->is_pinned) wanted[i]->end(wanted[i]->pinned.status);
    }
    fetch_some(peer, wanted, options, deadline);
  }
  for (Incoming& one : all) out.push_back(std::move(one.status));
  return out;
}

void Fetcher::fetch_some(std::uint64_t peer, std::span<Incoming*> some, const FetchOptions& options,
                         Deadline deadline) {
  for (std::size_t first = 0; first < some.size();) {
    std::uint64_t bytes = 0;
    std::size_t end = first;
    while (end < some.size() && (end == first || bytes + some[end]->pinned.held.bytes <= kBytesAtOnce)) {
      bytes += some[end++]->pinned.held.bytes;
    }
    const auto part = some.subspan(first, end - first);
    for (Incoming* one : part) {
      if (!one->done) reserve(*one, options, deadline);
    }
    read_all(peer, part, deadline);
    unpin(peer, part, deadline);
    publish(part, deadline);
    first = end;
  }
}

void Fetcher::reserve(Incoming& one, const FetchOptions& options, Deadline deadline) {
  const Held& held = one.pinned.held;
  if (!one.pinned.object || one.pinned.object->id != one.id || one.pinned.object->bytes != held.bytes) {
    return one.end(refusal(Code::kProtocolError, "the source describes another object"));
  }
  std::uint64_t offered = 0;
  for (const auto& place : one.pinned.places) offered += place.length;
  if (offered != held.bytes) return one.end(refusal(Code::kProtocolError, "the source's places do not add up"));
  if (options.only_if_room) {
    const NodeStats now = core_.store->stats();
    const auto limit = static_cast<double>(now.dram_bytes) * core_.options.watermark_low;
    if (static_cast<double>(now.dram_used + held.bytes) > limit || now.dram_largest_free < held.bytes) {
      return one.end(refusal(Code::kResourceExhausted, "no room without eviction"));
    }
  }
  NewObject object = *one.pinned.object;
  object.extra = options.extra;
  auto reserved = core_.store->reserve(0, object, deadline);
  if (!reserved.ok()) return one.end(reserved.status());
  if (reserved->existing) {
    const bool same = reserved->existing->digest == held.digest;
    return one.end(same ? Status() : refusal(Code::kConflict, "other bytes are here"));
  }
  one.put = reserved->put;
  one.places = std::move(reserved->places);
}

void Fetcher::read_all(std::uint64_t peer, std::span<Incoming*> some, Deadline deadline) {
  std::vector<Piece> pieces;
  for (Incoming* one : some) {
    one->first_piece = pieces.size();
    if (!one->done) cut(one->places, one->pinned.places, &pieces);
    one->end_piece = pieces.size();
  }
  std::vector<Status> results;
  const Status moved = transfer(peer, pieces, deadline, &results);
  for (Incoming* one : some) {
    if (one->done) continue;
    Status status = moved;
    for (std::size_t i = one->first_piece; status.ok() && i < one->end_piece; ++i) status = results[i];
    if (status.ok() && digest_of(core_.readable(one->places)) != one->pinned.held.digest) {
      status = refusal(Code::kDataCorrupt, "the bytes that came are not those of the digest");
    }
    if (status.ok()) continue;
    core_.store->abort(0, one->put);
    one->end(status);
  }
}

void Fetcher::unpin(std::uint64_t peer, std::span<Incoming*> some, Deadline deadline) {
  Unpin unpin;
  for (const Incoming* one : some) {
    if (one->is_pinned) unpin.pins.push_back(one->pinned.pin);
  }
  // The digest was right, so that whether the pin was held all along does not matter.
  if (!unpin.pins.empty()) (void)core_.rpc->post(peer, unpin, deadline);
}

void Fetcher::publish(std::span<Incoming*> some, Deadline deadline) {
  std::vector<Claim> claims;
  std::vector<Incoming*> whose;
  for (Incoming* one : some) {
    if (one->done) continue;
    const Held& held = one->pinned.held;
    Claim claim;
    claim.put = one->put;
    claim.copied = one->asked;
    claim.object = {one->id, held.digest, held.bytes, held.replicas, false};
    claims.push_back(std::move(claim));
    whose.push_back(one);
  }
  publisher_.publish(claims, deadline);
  for (std::size_t i = 0; i < claims.size(); ++i) {
    if (claims[i].status.ok()) {
      core_.counters.add(NodeCounters::kPulled);
      core_.counters.add(NodeCounters::kPulledBytes, claims[i].object.bytes);
    }
    whose[i]->end(claims[i].status);
  }
}

std::vector<Status> Fetcher::fetch_anywhere(std::span<const ObjectId> ids, const FetchOptions& options,
                                            Deadline deadline) {
  const auto found = finder_.locate(ids, deadline);
  std::vector<Status> out(ids.size(), refusal(Code::kNotFound, "no member holds it"));
  std::size_t most = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (core_.store->find(ids[i])) out[i] = Status();
    if (found[i]) most = std::max(most, found[i]->holders.size());
  }
  for (std::size_t turn = 0; turn < most; ++turn) {
    std::map<NodeId, std::vector<std::size_t>> by_holder;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (out[i].ok() || !found[i] || turn >= found[i]->holders.size()) continue;
      if (found[i]->holders[turn] != core_.self.node_id) by_holder[found[i]->holders[turn]].push_back(i);
    }
    for (const auto& [holder, places] : by_holder) {
      std::vector<ObjectId> part;
      for (const std::size_t i : places) part.push_back(ids[i]);
      const auto connection = connection_to(holder);
      std::vector<Status> got(part.size(), connection.status());
      if (connection.ok()) got = fetch(*connection, part, options, deadline);
      for (std::size_t n = 0; n < places.size(); ++n) out[places[n]] = std::move(got[n]);
    }
  }
  return out;
}

}  // namespace kvferry::store
