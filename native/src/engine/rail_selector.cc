#include "engine/rail_selector.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/deadline.h"
#include "base/log.h"

namespace kvferry {
namespace {

constexpr unsigned kFailuresBeforeBlock = 2;  // one broken rail may be bad luck, if there is nowhere else to go
constexpr milliseconds kFirstBackoff{1000};
constexpr milliseconds kLongestBackoff{60000};
constexpr milliseconds kShortestTry{1000};
constexpr std::string_view kFirstChoice = "first choice";

}  // namespace

RailSelector::RailSelector(const std::vector<Transport*>& ranked, PeerContext peer, Counters& counters)
    : peer_(std::move(peer)), counters_(counters) {
  for (std::size_t tier = 0; tier < ranked.size(); ++tier) {
    for (Path& path : ranked[tier]->paths(peer_)) {
      ranks_.emplace_back();
      ranks_.back().transport = ranked[tier];
      ranks_.back().tier = tier;
      ranks_.back().path = std::move(path);
    }
  }
  nothing_beats_first_ = ranks_.size() == 1 || ranks_[1].tier != 0;
  spare_lane_ = most_lanes();
}

std::string RailSelector::name_of(const Rank& rank) {
  const std::string transport(rank.transport->name());
  return rank.path.name.empty() ? transport : transport + " " + rank.path.name;
}

bool RailSelector::blocked(const Rank& rank) { return rank.backoff.count() > 0 && Clock::now() < rank.blocked_until; }

void RailSelector::block_locked(Rank& rank, const Status& why) {
  // What this pair of processes cannot do now it will not learn later.
  const bool for_good = why.code() == Code::kUnsupported;
  if (rank.backoff.count() == 0 && has_alternative_locked(rank)) switched_locked();
  rank.backoff = rank.backoff.count() == 0 ? kFirstBackoff : std::min(rank.backoff * 2, kLongestBackoff);
  rank.blocked_until = deadline_in(for_good ? kLongestWait : rank.backoff);
  rank.reason = why;
}

void RailSelector::switched_locked() {
  counters_.add(Counters::kRailSwitches);
  ++switches_;
}

bool RailSelector::has_alternative_locked(const Rank& rank) const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [&](const Rank& other) { return &other != &rank && other.tier == rank.tier && !blocked(other); });
}

std::size_t RailSelector::lanes_of_locked(std::size_t tier) const {
  std::size_t lanes = 0;
  for (const Rank& rank : ranks_) {
    if (rank.tier == tier) lanes += rank.transport->rails_per_path();
  }
  return lanes;
}

bool RailSelector::serves_locked(const Rank& rank, std::size_t lane) const {
  return lane == spare_lane_ ? rank.transport->has_spare_rail() : lane < lanes_of_locked(rank.tier);
}

std::size_t RailSelector::most_lanes() const {
  std::size_t most = 1;
  for (const Rank& rank : ranks_) most = std::max(most, lanes_of_locked(rank.tier));  // only constants are read
  return most;
}

std::size_t RailSelector::lanes_wanted() const {
  std::lock_guard lock(mutex_);
  for (const Rank& rank : ranks_) {
    if (!blocked(rank)) return lanes_of_locked(rank.tier);
  }
  return lanes_of_locked(ranks_.back().tier);
}

bool RailSelector::improves_locked(const Rank& candidate, const Rank& current) const {
  if (&candidate == &current || candidate.probed() || blocked(candidate)) return false;
  if (candidate.tier != current.tier) return candidate.tier < current.tier;
  return blocked(current) || candidate.load() + 1 < current.load();
}

bool RailSelector::better_than(std::size_t rank) const {
  if (rank == 0 && nothing_beats_first_) return false;
  std::lock_guard lock(mutex_);
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [&](const Rank& candidate) { return improves_locked(candidate, ranks_[rank]); });
}

std::vector<std::size_t> RailSelector::candidates_locked(std::size_t lane, std::size_t current) const {
  std::vector<std::size_t> open, last_resort;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    if (!serves_locked(rank, lane)) continue;
    if (current != kNoRank) {
      if (improves_locked(rank, ranks_[current])) open.push_back(i);
    } else if (!rank.probed() && !blocked(rank)) {
      open.push_back(i);
    } else if (rank.reason.code() != Code::kUnsupported) {
      last_resort.push_back(i);  // rather than fail without a try
    }
  }
  const auto order = [&](std::size_t i) {
    const Rank& rank = ranks_[i];
    // With nothing at hand the healthy ones come first; with a rail at hand there is time to try a suspect.
    const bool suspect = current == kNoRank && rank.backoff.count() > 0;
    return std::tuple(rank.tier, suspect, rank.load(), i);
  };
  std::sort(open.begin(), open.end(), [&](std::size_t a, std::size_t b) { return order(a) < order(b); });
  open.insert(open.end(), last_resort.begin(), last_resort.end());
  return open;
}

// The best path that was not tried yet. Chosen and counted in one step, so that lanes that open rails at the same time
// spread over the paths.
RailSelector::Choice RailSelector::choose(std::size_t lane, std::size_t current,
                                          const std::vector<std::size_t>& tried) {
  std::lock_guard lock(mutex_);
  Choice choice;
  for (const std::size_t rank : candidates_locked(lane, current)) {
    if (std::find(tried.begin(), tried.end(), rank) != tried.end()) continue;
    if (choice.rank == kNoRank) {
      choice.rank = rank;
    } else {
      ++choice.others;
    }
  }
  if (choice.rank != kNoRank) ranks_[choice.rank].opening += load_of(lane);
  return choice;
}

Result<RailSelector::Opened> RailSelector::open(std::size_t lane, std::size_t current, Deadline deadline) {
  std::vector<std::size_t> tried;
  for (;;) {
    const Choice choice = choose(lane, current, tried);
    if (choice.rank == kNoRank) break;
    // One that does not answer must leave time for the others.
    const auto left = static_cast<milliseconds::rep>(choice.others + 1);
    const milliseconds share = std::max(remaining(deadline) / left, kShortestTry);
    const Deadline due = choice.others == 0 ? deadline : sooner(deadline, deadline_in(share));
    Result<Opened> opened = try_open(lane, choice.rank, due);
    if (opened.ok()) return opened;
    tried.push_back(choice.rank);
  }
  std::lock_guard lock(mutex_);
  return reasons_locked(current == kNoRank ? kNoRank : ranks_[current].tier);
}

Result<RailSelector::Opened> RailSelector::try_open(std::size_t lane, std::size_t rank, Deadline deadline) {
  PeerContext peer = peer_;
  Transport* transport = nullptr;
  {
    std::lock_guard lock(mutex_);
    transport = ranks_[rank].transport;
    peer.path = ranks_[rank].path;
  }
  Result<std::unique_ptr<Rail>> rail = transport->open_rail(peer, deadline);
  std::string chosen;  // logged without the lock
  {
    std::lock_guard lock(mutex_);
    Rank& entry = ranks_[rank];
    entry.opening -= load_of(lane);
    if (!rail.ok()) {
      if (entry.live_rails == 0) block_locked(entry, rail.status());
      entry.reason = rail.status();
      return rail.status();
    }
    entry.live_rails += load_of(lane);
    chosen = activate_locked(entry);
  }
  counters_.add(Counters::kRailsOpened);
  if (!chosen.empty()) {
    log_event(chosen == kFirstChoice ? LogLevel::kInfo : LogLevel::kWarning, "transport_chosen",
              {{"peer", peer_.node_id.to_string()},
               {"endpoint", peer_.endpoint.to_string()},
               {"transport", transport->name()},
               {"note", chosen}});
  }
  return Opened{*std::move(rail), rank};
}

// Returns the note to log if the transport in use changed, else "".
std::string RailSelector::activate_locked(const Rank& rank) {
  if (rank.tier == active_) return {};
  if (active_ != kNoRank) switched_locked();
  active_ = rank.tier;
  return rank.tier == 0 ? std::string(kFirstChoice) : reasons_locked(rank.tier).message();
}

void RailSelector::released(std::size_t lane, std::size_t rank) {
  std::lock_guard lock(mutex_);
  ranks_[rank].live_rails -= load_of(lane);
}

void RailSelector::report_failure(std::size_t rank, const Status& why) {
  counters_.add(Counters::kRailFailures);
  milliseconds aside{0};
  std::string name;
  {
    std::lock_guard lock(mutex_);
    Rank& entry = ranks_[rank];
    entry.reason = why;
    ++entry.failures;
    if (blocked(entry)) return;  // another lane was faster
    if (++entry.failures_in_a_row < (has_alternative_locked(entry) ? 1U : kFailuresBeforeBlock)) return;
    entry.failures_in_a_row = 0;
    block_locked(entry, why);
    aside = entry.backoff;
    name = name_of(entry);
  }
  log_event(LogLevel::kWarning, "rail_set_aside",
            {{"peer", peer_.node_id.to_string()}, {"rail", name}, {"ms", aside.count()}, {"reason", why}});
}

bool RailSelector::report_success(std::size_t rank) {
  std::string name;
  {
    std::lock_guard lock(mutex_);
    Rank& entry = ranks_[rank];
    entry.failures_in_a_row = 0;
    if (entry.backoff.count() == 0) return true;
    if (blocked(entry)) return false;
    entry.backoff = milliseconds(0);
    entry.reason = Status();
    ++entry.recoveries;
    if (has_alternative_locked(entry)) switched_locked();
    name = name_of(entry);
  }
  counters_.add(Counters::kRailRecoveries);
  log_event(LogLevel::kInfo, "rail_recovered", {{"peer", peer_.node_id.to_string()}, {"rail", name}});
  return true;
}

void RailSelector::moved(std::size_t rank, std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  ranks_[rank].bytes += bytes;
}

int RailSelector::distance(std::size_t rank, int node) const {
  return rank == kNoRank ? NumaDistances::kUnknown : peer_.distances.between(node, ranks_[rank].path.numa_node);
}

Status RailSelector::reasons_locked(std::size_t below_tier) const {
  std::string text;
  Code code = Code::kUnavailable;
  for (const Rank& rank : ranks_) {
    if (rank.tier >= below_tier || rank.reason.ok()) continue;
    if (!text.empty()) text += "; ";
    text += name_of(rank) + " not possible: " + rank.reason.message();
    code = rank.reason.code();
  }
  return {code, text.empty() ? "no transport has a rail for this lane" : text};
}

std::uint64_t RailSelector::switches() const {
  std::lock_guard lock(mutex_);
  return switches_;
}

std::string RailSelector::active() const {
  std::lock_guard lock(mutex_);
  for (const Rank& rank : ranks_) {
    if (rank.tier == active_) return std::string(rank.transport->name());
  }
  return {};
}

std::string RailSelector::note() const {
  std::lock_guard lock(mutex_);
  if (active_ == kNoRank) return ranks_.front().reason.ok() ? "" : reasons_locked(kNoRank).message();
  std::string text;
  std::size_t paths = 0;
  for (const Rank& rank : ranks_) {
    if (rank.tier != active_) continue;
    if (text.empty()) text = std::string(rank.transport->name()) + ": ";
    ++paths;
  }
  text += active_ == 0 ? std::string(kFirstChoice) : reasons_locked(active_).message();
  if (paths < 2) return text;
  text += ", " + std::to_string(paths) + " rails";
  for (const Rank& rank : ranks_) {
    if (rank.tier == active_ && blocked(rank)) text += "; " + rank.path.name + " set aside: " + rank.reason.message();
  }
  return text;
}

std::vector<RailStats> RailSelector::rails() const {
  std::lock_guard lock(mutex_);
  std::vector<RailStats> out;
  for (const Rank& rank : ranks_) {
    out.push_back({name_of(rank), std::string(rank.transport->name()), rank.live_rails, rank.backoff.count() > 0,
                   rank.bytes, rank.failures, rank.recoveries, rank.reason.message()});
  }
  return out;
}

}  // namespace kvferry
