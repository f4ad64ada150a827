#include "store/puts.h"

#include <algorithm>

#include "store/runs.h"

namespace kvferry::store {
namespace {

constexpr milliseconds kPutTimeout{10000};  // what a put may wait for owners and replicas
// For room: short, so that those who wait take turns, and room is not kept for those who have given up.
constexpr milliseconds kRoomTime{250};

Status conflict() { return {Code::kConflict, "other bytes are stored under that key, and objects are written once"}; }

}  // namespace

Deadline Puts::deadline() const { return deadline_in(kPutTimeout); }

Puts::RoomUntil Puts::room_until(bool wait) { return wait ? RoomUntil(deadline_in(kRoomTime)) : std::nullopt; }

Status Puts::check(const NewObject& object) const {
  if (core_.draining)
    return {Code::kUnavailable, "the node is being drained and takes no more puts: use another one, or start it anew"};
  if (object.tags.size() > 16) return {Code::kInvalidArgument, "an object has at most 16 tags"};
  if (ObjectIds(object.tenant).of(object.key) != object.id) {
    return {Code::kInvalidArgument, "the id is not that of the key"};
  }
  return {};
}

bool Puts::open(Session session, NewObject object, const ContentDigest* digest, RoomUntil until, Open* out) {
  out->done.status = check(object);
  if (!out->done.status.ok()) {
    out->finished = true;
    return true;
  }
  if (object.replicas == 0) object.replicas = core_.options.default_replicas;
  if (!until && core_.options.demote_to_remote) return false;  // making room may ask others
  auto reserved = core_.store->reserve(session, object, until.value_or(Clock::now()));
  const Code code = reserved.status().code();
  if (!until && (code == Code::kDeadlineExceeded || code == Code::kResourceExhausted)) return false;
  if (!reserved.ok()) {
    out->end(reserved.status());
    return true;
  }
  out->extra = object.extra;
  if (reserved->existing) {
    const bool same = digest == nullptr || reserved->existing->digest == *digest;
    out->end(same ? Status() : conflict());
    out->done.replicas = 1;
    return true;
  }
  out->places = std::move(reserved->places);
  out->claim.session = session;
  out->claim.put = reserved->put;
  out->claim.object = {object.id, {}, object.bytes, object.replicas, true};
  return true;
}

std::optional<Reserve::Answer> Puts::reserve(Session session, std::span<const NewObject> objects, bool wait) {
  Reserve::Answer answer;
  const RoomUntil until = room_until(wait);
  for (const NewObject& object : objects) {
    Open put;
    if (!open(session, object, nullptr, until, &put)) {
      for (const Reserve::Done& before : answer.results) {
        if (before.put == 0) continue;
        (void)core_.puts.take(session, before.put);
        core_.store->abort(session, before.put);
      }
      return std::nullopt;
    }
    Reserve::Done done;
    done.status = put.done.status;
    if (!put.finished) {
      done.put = put.claim.put;
      done.places = std::move(put.places);
      core_.puts.add(done.put, {session, object.id, object.bytes, put.claim.object.replicas, object.extra});
    } else if (done.status.ok()) {
      done.existing = core_.store->find(object.id);
      if (!done.existing) done.status = {Code::kUnavailable, "it left while it was looked at; put it again"};
    }
    answer.results.push_back(std::move(done));
  }
  return answer;
}

std::optional<PutAnswer> Puts::commit(Session session, const Commit& commit, bool wait) {
  std::vector<Open> puts(commit.items.size());
  std::vector<Claim> claims;
  std::uint32_t most_replicas = 1;
  for (std::size_t i = 0; i < puts.size(); ++i) {
    const Commit::Item& item = commit.items[i];
    const auto known = core_.puts.take(session, item.put);
    if (!known) {
      puts[i].end({Code::kNotFound, "put " + std::to_string(item.put) +
                                        " is not under way: it was committed, aborted, or "
                                        "its lease ended"});
      continue;
    }
    puts[i].extra = known->extra;
    puts[i].claim.session = session;
    puts[i].claim.put = item.put;
    puts[i].claim.object = {known->id, item.digest, known->bytes, known->replicas, true};
    most_replicas = std::max(most_replicas, known->replicas);
    claims.push_back(puts[i].claim);
  }
  if (!wait && (most_replicas > 1 || !publisher_.is_quick(claims))) {
    for (const Open& put : puts) {
      if (put.finished) continue;
      const auto& object = put.claim.object;
      core_.puts.add(put.claim.put, {session, object.id, object.bytes, object.replicas, put.extra});
    }
    return std::nullopt;
  }
  PutAnswer answer;
  finish(puts, &answer);
  return answer;
}

std::optional<PutAnswer> Puts::put_inline(Session session, const PutInline& put, bool wait) {
  const auto waits = [&](const PutInline::Item& item) {
    const auto& object = item.object;
    const std::uint32_t replicas = object.replicas == 0 ? core_.options.default_replicas : object.replicas;
    return replicas > 1 || !core_.is_authoritative(*core_.cluster->view(), object.id);
  };
  if (!wait && std::ranges::any_of(put.items, waits)) return std::nullopt;
  std::vector<Open> puts(put.items.size());
  const RoomUntil until = room_until(wait);
  for (std::size_t i = 0; i < puts.size(); ++i) {
    const PutInline::Item& item = put.items[i];
    const std::span<const std::byte> value = item.value;
    if (item.object.bytes != value.size()) {
      puts[i].end({Code::kInvalidArgument, "the object's size is not that of the value"});
    } else if (digest_of(ConstPieces(&value, 1)) != item.digest) {
      puts[i].end({Code::kDataCorrupt, "the bytes that came are not those of the digest"});
    } else if (!open(session, item.object, &item.digest, until, &puts[i])) {
      for (const Open& before : puts) {
        if (!before.finished && before.claim.put != 0) core_.store->abort(session, before.claim.put);
      }
      return std::nullopt;
    }
    if (puts[i].finished) continue;
    puts[i].claim.object.digest = item.digest;
    copy_runs(ConstPieces(&value, 1), core_.writable(puts[i].places));
  }
  PutAnswer answer;
  finish(puts, &answer);
  return answer;
}

// Reserves what the object takes; out->finished if nothing is to be read.
void Puts::open_pull(Session session, const PutFrom::Item& item, Deadline until, Open* out) {
  std::uint64_t bytes = 0;
  bool wraps = false;
  for (const auto& piece : item.pieces) {
    wraps = wraps || bytes + piece.length < bytes;
    bytes += piece.length;
  }
  if (wraps || bytes != item.object.bytes) {
    return out->end({Code::kInvalidArgument, "the object's size is not that of the pieces"});
  }
  (void)open(session, item.object, item.digest ? &*item.digest : nullptr, until, out);
  if (out->finished && out->done.status.ok() && !item.digest) {
    out->done.status = {Code::kInvalidArgument, "something is there already; without a digest it cannot be compared"};
  }
}

// All in one transfer. One status for all, or for each alone if that failed for a reason of one of them.
std::vector<Status> Puts::pull(std::uint64_t peer, const PutFrom& put, std::span<const Open> puts) {
  std::vector<Place> to;
  std::vector<wire::PieceDescriptor> from;
  for (std::size_t i = 0; i < puts.size(); ++i) {
    if (puts[i].finished) continue;
    to.insert(to.end(), puts[i].places.begin(), puts[i].places.end());
    from.insert(from.end(), put.items[i].pieces.begin(), put.items[i].pieces.end());
  }
  const Status all = fetcher_.read(peer, to, from, deadline());
  std::vector<Status> out(puts.size(), all);
  if (all.ok() || all.code() == Code::kPeerLost || all.code() == Code::kDeadlineExceeded) return out;
  const Deadline limit = deadline();
  for (std::size_t i = 0; i < puts.size(); ++i) {
    if (!puts[i].finished) out[i] = fetcher_.read(peer, puts[i].places, put.items[i].pieces, limit);
  }
  return out;
}

PutAnswer Puts::put_from(Session session, std::uint64_t peer, const PutFrom& put) {
  std::vector<Open> puts(put.items.size());
  const Deadline until = deadline_in(kRoomTime);
  for (std::size_t i = 0; i < puts.size(); ++i) open_pull(session, put.items[i], until, &puts[i]);
  std::vector<Status> pulled = pull(peer, put, puts);
  for (std::size_t i = 0; i < puts.size(); ++i) {
    Open& one = puts[i];
    if (one.finished) continue;
    const auto& expected = put.items[i].digest;
    Status status = std::move(pulled[i]);
    one.claim.object.digest = digest_of(core_.readable(one.places));
    if (status.ok() && expected && *expected != one.claim.object.digest) {
      status = {Code::kDataCorrupt, "the bytes that came are not those of the digest"};
    }
    if (status.ok()) continue;
    core_.store->abort(session, one.claim.put);
    one.end(status.with_context("reading the value out of the client's memory"));
  }
  PutAnswer answer;
  finish(puts, &answer);
  return answer;
}

void Puts::abort(Session session, const Abort& abort) {
  for (const PutId put : abort.puts) {
    (void)core_.puts.take(session, put);
    core_.store->abort(session, put);
  }
}

void Puts::finish(std::span<Open> puts, PutAnswer* answer) {
  std::vector<Claim> claims;
  std::vector<Open*> open;
  for (Open& put : puts) {
    if (put.finished) continue;
    claims.push_back(put.claim);
    open.push_back(&put);
  }
  if (!claims.empty()) publisher_.publish(claims, deadline());
  for (std::size_t i = 0; i < open.size(); ++i) {
    open[i]->claim = claims[i];
    open[i]->done = {claims[i].status, claims[i].created, claims[i].replicas};
  }
  replicate(puts);
  for (Open& put : puts) {
    count(put);
    answer->results.push_back(std::move(put.done));
  }
}

// The replicas that are missing, on the hosts that come next in the id's order.
void Puts::replicate(std::span<Open> puts) {
  std::vector<Wanting> wanting;
  std::vector<Open*> whose;
  for (Open& put : puts) {
    if (put.finished || !put.done.status.ok() || put.done.replicas >= put.claim.object.replicas) continue;
    wanting.push_back({put.claim.object.id, put.claim.object.replicas, {core_.self.node_id}});
    whose.push_back(&put);
  }
  if (wanting.empty()) return;
  (void)replicator_.replicate(wanting, deadline());
  for (std::size_t i = 0; i < whose.size(); ++i) {
    whose[i]->done.replicas = std::max(whose[i]->done.replicas, static_cast<std::uint32_t>(wanting[i].holders.size()));
  }
}

void Puts::count(const Open& put) {
  NodeCounters& counters = core_.counters;
  if (put.done.status.code() == Code::kConflict) return counters.add(NodeCounters::kPutConflicts);
  if (!put.done.status.ok()) return counters.add(NodeCounters::kPutsFailed);
  if (!put.done.created) return counters.add(NodeCounters::kPutsThere);
  counters.add(NodeCounters::kPuts);
  counters.add(NodeCounters::kPutBytes, put.claim.object.bytes);
}

}  // namespace kvferry::store
