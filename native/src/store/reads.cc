#include "store/reads.h"

#include <algorithm>
#include <map>

#include "store/runs.h"

namespace kvferry::store {
namespace {

constexpr milliseconds kReadTimeout{10000};  // for SSD and other members
constexpr Session kNode = 0;

Deadline deadline_of(bool wait) { return wait ? deadline_in(kReadTimeout) : Clock::now(); }

}  // namespace

InlineValues::~InlineValues() {
  for (const PinId pin : pins_) (void)core_.store->unpin(kNode, pin);
}

Status InlineValues::get(const GetInline::Item& item, Deadline deadline, Held* held, ByteView* value) {
  const auto known = core_.store->find(item.id);
  if (!known) return {Code::kNotFound, "the node does not hold it"};
  *held = *known;
  if (item.offset > known->bytes)
    return {Code::kOutOfRange, "the object has " + std::to_string(known->bytes) + " bytes"};
  if (std::min(item.length, known->bytes - item.offset) > std::min(budget_, kMaxInlineBytes)) {
    return {Code::kResourceExhausted, "too long for the answer; pin it"};
  }
  auto pinned = core_.store->pin(kNode, item.id, deadline);
  if (!pinned.ok()) return pinned.status();
  pins_.push_back(pinned->pin);
  *held = pinned->held;
  if (item.offset > held->bytes) return {Code::kOutOfRange, "it is shorter now"};
  const std::uint64_t length = std::min(item.length, held->bytes - item.offset);
  if (length > std::min(budget_, kMaxInlineBytes)) return {Code::kResourceExhausted, "too long for the answer; pin it"};
  budget_ -= length;
  const auto runs = core_.readable(pinned->places);
  const auto parts = cut(runs, item.offset, length);
  if (parts.size() == 1) {
    *value = parts[0];
  } else if (!parts.empty()) {
    Bytes& copy = copies_.emplace_back(length);
    const std::span<std::byte> whole(copy);
    copy_runs(parts, Pieces(&whole, 1));
    *value = copy;
  }
  return {};
}

bool Reads::is_on_ssd(const ObjectId& id) const {
  if (core_.options.ssd_directory.empty()) return false;
  const auto held = core_.store->find(id);
  return held && held->tier == Tier::kSsd;
}

void Reads::count_read(const SessionInfo& who, const ObjectId& id) {
  core_.counters.add(NodeCounters::kReads);
  if (who.who != Attach::Who::kClient || who.home == core_.self.node_id) return;
  if (hot_reads_.count(id, who.home, Clock::now())) hot_(id, who.home);
}

std::optional<GetInline::Answer> Reads::get_inline(const SessionInfo& who, const GetInline& get, InlineValues& values,
                                                   bool wait) {
  if (!wait && std::ranges::any_of(get.items, [&](const auto& item) { return is_on_ssd(item.id); })) {
    return std::nullopt;
  }
  GetInline::Answer answer;
  for (const GetInline::Item& item : get.items) {
    GetInline::Done done;
    done.status = values.get(item, deadline_of(wait), &done.held, &done.value);
    if (!wait && done.status.code() == Code::kDeadlineExceeded) return std::nullopt;
    if (done.status.ok()) count_read(who, item.id);
    if (done.status.code() == Code::kNotFound) core_.counters.add(NodeCounters::kReadsAbsent);
    answer.results.push_back(std::move(done));
  }
  return answer;
}

std::optional<Pin::Answer> Reads::pin(const SessionInfo& who, const Pin& pin, bool wait) {
  if (!wait && std::ranges::any_of(pin.ids, [&](const ObjectId& id) { return is_on_ssd(id); })) return std::nullopt;
  Pin::Answer answer;
  for (const ObjectId& id : pin.ids) {
    Pin::Done& done = answer.results.emplace_back();
    auto pinned = core_.store->pin(who.id, id, deadline_of(wait));
    done.status = pinned.status();
    if (!pinned.ok()) {
      if (done.status.code() == Code::kNotFound) core_.counters.add(NodeCounters::kReadsAbsent);
      continue;
    }
    count_read(who, id);
    done.pin = pinned->pin;
    done.held = pinned->held;
    for (const Place& place : pinned->places) {
      done.places.push_back({core_.arenas[place.arena].key, place.offset, place.length});
    }
    if (!pin.describe) continue;
    done.object = core_.store->describe(id);
    if (done.object) continue;
    (void)core_.store->unpin(who.id, done.pin);  // gone, or another by now
    done = Pin::Done{};
    done.status = {Code::kNotFound, "it left while it was looked at"};
  }
  return answer;
}

Unpin::Answer Reads::unpin(const SessionInfo& who, const Unpin& unpin) {
  Unpin::Answer answer;
  for (const PinId pin : unpin.pins) answer.held.push_back(core_.store->unpin(who.id, pin));
  return answer;
}

std::optional<std::vector<std::optional<Found>>> Reads::look(const ClusterView& view, std::span<const ObjectId> ids,
                                                             bool wait) {
  core_.counters.add(NodeCounters::kLookups, ids.size());
  const std::vector<std::size_t> doubtful = finder_.doubtful(view, ids);
  if (!doubtful.empty() && !wait) return std::nullopt;
  std::vector<std::optional<Found>> found;
  for (const ObjectId& id : ids) found.push_back(finder_.here(view, id));
  std::vector<ObjectId> rest;
  for (const std::size_t i : doubtful) rest.push_back(ids[i]);
  if (rest.empty()) return found;
  auto more = finder_.everywhere(view, rest, deadline_of(wait));
  for (std::size_t n = 0; n < rest.size(); ++n) {
    if (more[n]) found[doubtful[n]] = std::move(more[n]);
  }
  return found;
}

std::optional<Lookup::Answer> Reads::lookup(const SessionInfo& who, const Lookup& lookup, InlineValues& values,
                                            bool wait) {
  const auto view = core_.cluster->view();
  const auto found = look(*view, lookup.ids, wait);
  if (!found) return std::nullopt;
  Lookup::Answer answer;
  answer.view = view->fingerprint;
  std::map<NodeId, std::uint16_t> indices;
  for (std::size_t i = 0; i < lookup.ids.size(); ++i) {
    Lookup::Done& done = answer.results.emplace_back();
    const auto& one = (*found)[i];
    if (!one) continue;
    done.found = true;
    done.bytes = one->bytes;
    done.digest = one->digest;
    for (const NodeId& holder : one->holders) {
      const auto [place, added] = indices.try_emplace(holder, static_cast<std::uint16_t>(answer.nodes.size()));
      if (added) answer.nodes.push_back(holder);
      done.holders.push_back(place->second);
    }
    const bool ours = !one->holders.empty() && one->holders.front() == core_.self.node_id;
    if (!ours || one->bytes > lookup.inline_bytes || is_on_ssd(lookup.ids[i])) continue;
    Held held;
    const Status got = values.get({lookup.ids[i], 0, UINT64_MAX}, Clock::now(), &held, &done.value);
    done.has_value = got.ok();
    if (!got.ok()) continue;
    done.bytes = held.bytes;
    done.digest = held.digest;
    count_read(who, lookup.ids[i]);
  }
  return answer;
}

std::optional<std::vector<bool>> Reads::look_if_there(const ClusterView& view, std::span<const ObjectId> ids,
                                                      bool wait) {
  core_.counters.add(NodeCounters::kLookups, ids.size());
  std::vector<bool> there(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) there[i] = finder_.is_here(ids[i]);
  const std::vector<std::size_t> doubtful = finder_.doubtful(view, ids);
  if (doubtful.empty()) return there;
  if (!wait) return std::nullopt;
  std::vector<ObjectId> rest;
  for (const std::size_t i : doubtful) rest.push_back(ids[i]);
  const auto more = finder_.everywhere(view, rest, deadline_of(wait));
  for (std::size_t n = 0; n < rest.size(); ++n) there[doubtful[n]] = more[n].has_value();
  return there;
}

std::optional<Exists::Answer> Reads::exists(const Exists& exists, bool wait) {
  const auto view = core_.cluster->view();
  auto there = look_if_there(*view, exists.ids, wait);
  if (!there) return std::nullopt;
  return Exists::Answer{view->fingerprint, *std::move(there)};
}

std::optional<Match::Answer> Reads::match(const Match& match, bool wait) {
  const auto view = core_.cluster->view();
  const auto there = look_if_there(*view, match.ids, wait);
  if (!there) return std::nullopt;
  const auto end = std::ranges::find(*there, false);
  return Match::Answer{view->fingerprint, static_cast<std::uint32_t>(end - there->begin())};
}

Find::Answer Reads::find(const Find& find) const {
  Find::Answer answer;
  for (const ObjectId& id : find.ids) {
    // In this order: a claim is taken back after its object has become visible.
    const auto claimed = core_.claims.find(id);
    const auto visible = core_.store->find(id);
    answer.results.push_back({visible ? visible : claimed, !visible && claimed});
  }
  return answer;
}

}  // namespace kvferry::store
