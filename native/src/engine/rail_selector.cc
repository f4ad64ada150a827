#include "engine/rail_selector.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"
#include "base/log.h"

namespace kvferry {
namespace {

constexpr unsigned kFailuresBeforeBlock = 2;  // one broken rail may be bad luck
constexpr milliseconds kFirstBackoff{1000};
constexpr milliseconds kLongestBackoff{60000};

}  // namespace

RailSelector::RailSelector(std::vector<Transport*> ranked, PeerContext peer, Counters& counters)
    : peer_(std::move(peer)), counters_(counters) {
  for (Transport* transport : ranked) {
    ranks_.emplace_back();
    ranks_.back().transport = transport;
  }
}

bool RailSelector::blocked_locked(const Rank& rank) const {
  return rank.backoff.count() > 0 && Clock::now() < rank.blocked_until;
}

void RailSelector::block_locked(Rank& rank, const Status& why) {
  // What this pair of processes cannot do now it will not learn later.
  const bool for_good = why.code() == Code::kUnsupported;
  rank.backoff = rank.backoff.count() == 0 ? kFirstBackoff : std::min(rank.backoff * 2, kLongestBackoff);
  rank.blocked_until = deadline_in(for_good ? kLongestWait : rank.backoff);
  rank.reason = why;
}

std::size_t RailSelector::lanes_wanted() const {
  std::lock_guard lock(mutex_);
  for (const Rank& rank : ranks_) {
    if (!blocked_locked(rank)) return rank.transport->rails_per_peer();
  }
  return ranks_.back().transport->rails_per_peer();
}

bool RailSelector::better_than(std::size_t rank) const {
  std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < rank && i < ranks_.size(); ++i) {
    if (!blocked_locked(ranks_[i])) return true;
  }
  return false;
}

std::vector<std::size_t> RailSelector::candidates(std::size_t lane, std::size_t below) const {
  std::lock_guard lock(mutex_);
  std::vector<std::size_t> open, blocked;
  for (std::size_t i = 0; i < ranks_.size() && i < below; ++i) {
    if (lane >= ranks_[i].transport->rails_per_peer()) continue;
    if (!blocked_locked(ranks_[i])) {
      open.push_back(i);
    } else if (below == kNoRank && ranks_[i].reason.code() != Code::kUnsupported) {
      blocked.push_back(i);  // rather than fail without a try
    }
  }
  open.insert(open.end(), blocked.begin(), blocked.end());
  return open;
}

Result<RailSelector::Opened> RailSelector::open(std::size_t lane, std::size_t below, Deadline deadline) {
  for (std::size_t rank : candidates(lane, below)) {
    Result<Opened> opened = try_open(rank, deadline);
    if (opened.ok()) return opened;
  }
  std::lock_guard lock(mutex_);
  return reasons_locked(below);
}

Result<RailSelector::Opened> RailSelector::try_open(std::size_t rank, Deadline deadline) {
  Transport* transport = nullptr;
  {
    std::lock_guard lock(mutex_);
    transport = ranks_[rank].transport;
  }
  Result<std::unique_ptr<Rail>> rail = transport->open_rail(peer_, deadline);
  std::string chosen;  // logged without the lock
  {
    std::lock_guard lock(mutex_);
    if (!rail.ok()) {
      if (ranks_[rank].live_rails == 0) block_locked(ranks_[rank], rail.status());
      ranks_[rank].reason = rail.status();
      return rail.status();
    }
    ++ranks_[rank].live_rails;
    chosen = activate_locked(rank);
  }
  counters_.add(Counters::kRailsOpened);
  if (!chosen.empty()) {
    log_event(rank == 0 ? LogLevel::kInfo : LogLevel::kWarning, "transport_chosen",
              {{"peer", peer_.node_id.to_string()},
               {"endpoint", peer_.endpoint.to_string()},
               {"transport", transport->name()},
               {"note", chosen}});
  }
  return Opened{*std::move(rail), rank};
}

// Returns the note to log if the transport in use changed, else "".
std::string RailSelector::activate_locked(std::size_t rank) {
  if (rank == active_) return {};
  if (active_ != kNoRank) {
    counters_.add(Counters::kRailSwitches);
    ++switches_;
  }
  active_ = rank;
  return rank == 0 ? "first choice" : reasons_locked(rank).message();
}

void RailSelector::released(std::size_t rank) {
  std::lock_guard lock(mutex_);
  --ranks_[rank].live_rails;
}

void RailSelector::report_failure(std::size_t rank, const Status& why) {
  counters_.add(Counters::kRailFailures);
  std::lock_guard lock(mutex_);
  Rank& entry = ranks_[rank];
  entry.reason = why;
  if (++entry.failures_in_a_row >= kFailuresBeforeBlock) {
    entry.failures_in_a_row = 0;
    block_locked(entry, why);
  }
}

void RailSelector::report_success(std::size_t rank) {
  std::lock_guard lock(mutex_);
  ranks_[rank].failures_in_a_row = 0;
  ranks_[rank].backoff = milliseconds(0);
}

Status RailSelector::reasons_locked(std::size_t below) const {
  std::string text;
  Code code = Code::kUnavailable;
  for (std::size_t i = 0; i < ranks_.size() && i < below; ++i) {
    if (ranks_[i].reason.ok()) continue;
    if (!text.empty()) text += "; ";
    text += std::string(ranks_[i].transport->name()) + " not possible: " + ranks_[i].reason.message();
    code = ranks_[i].reason.code();
  }
  return {code, text.empty() ? "no transport has a rail for this lane" : text};
}

std::uint64_t RailSelector::switches() const {
  std::lock_guard lock(mutex_);
  return switches_;
}

std::string RailSelector::active() const {
  std::lock_guard lock(mutex_);
  return active_ == kNoRank ? std::string() : std::string(ranks_[active_].transport->name());
}

std::string RailSelector::note() const {
  std::lock_guard lock(mutex_);
  if (active_ == kNoRank) return ranks_.front().reason.ok() ? "" : reasons_locked(kNoRank).message();
  std::string text(ranks_[active_].transport->name());
  if (active_ == 0) return text + ": first choice";
  return text + ": " + reasons_locked(active_).message();
}

}  // namespace kvferry
