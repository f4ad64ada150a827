// Chooses transport and path for the lanes of one peer: transports ranked, best first; the paths of one transport side
// by side, each with as many rails. A path that fails is set aside for a while and tried again later, by one lane, so
// that traffic comes back to it. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/counters.h"
#include "kvferry/engine.h"
#include "transport/transport.h"

namespace kvferry {

class RailSelector {
 public:
  static constexpr std::size_t kNoRank = ~std::size_t{0};
  struct Opened {
    std::unique_ptr<Rail> rail;
    std::size_t rank = 0;  // names its path
  };

  // `ranked` outlives the selector and is not empty.
  RailSelector(const std::vector<Transport*>& ranked, PeerContext peer, Counters& counters);

  std::size_t most_lanes() const;  // that lanes_wanted() will ever return
  // Beside those: the lane that open() gives a rail kept free for small transfers, if the transport has one.
  std::size_t spare_lane() const { return spare_lane_; }
  // How many lanes the best transport that is not set aside can use.
  std::size_t lanes_wanted() const;
  // True if another path than `rank` is worth a try now: a better transport, one with fewer rails, or any if this is
  // set aside.
  bool better_than(std::size_t rank) const;
  // A rail of the best path that can be reached; better than `current`, the rank of the rail at hand, if there is one.
  // Blocks until `deadline` at most.
  Result<Opened> open(std::size_t lane, std::size_t current, Deadline deadline);
  void released(std::size_t lane, std::size_t rank);         // a rail from open() was destroyed
  void report_failure(std::size_t rank, const Status& why);  // a rail broke in use
  // The first after open(). False: the path is still set aside (others broke on it), so report the next one as well.
  bool report_success(std::size_t rank);
  void moved(std::size_t rank, std::uint64_t bytes);
  // From memory on a NUMA node to where the path begins, as NumaDistances has it. `rank` may be kNoRank, `node` -1.
  int distance(std::size_t rank, int node) const;

  std::uint64_t switches() const;  // how often traffic moved to another transport or path
  std::string active() const;      // name of the transport in use, "" before the first
  std::string note() const;        // why this one
  std::vector<RailStats> rails() const;

 private:
  struct Rank {
    Transport* transport = nullptr;
    std::size_t tier = 0;  // of the transport: 0 is the best
    Path path;
    std::size_t live_rails = 0;  // like the next, without that of the spare lane, which carries no load
    std::size_t opening = 0;     // rails that lanes are opening
    unsigned failures_in_a_row = 0;
    milliseconds backoff{0};  // 0: healthy; else set aside until `blocked_until`, then suspect until the next success
    Clock::time_point blocked_until{};
    Status reason;
    std::uint64_t bytes = 0, failures = 0, recoveries = 0;
    std::size_t load() const { return live_rails + opening; }
    bool probed() const { return backoff.count() > 0 && opening > 0; }  // one lane is enough for a suspect
  };
  struct Choice {
    std::size_t rank = kNoRank;
    std::size_t others = 0;  // that may be tried after it
  };
  static std::string name_of(const Rank& rank);
  static bool blocked(const Rank& rank);
  std::size_t lanes_of_locked(std::size_t tier) const;
  bool serves_locked(const Rank& rank, std::size_t lane) const;
  bool improves_locked(const Rank& candidate, const Rank& current) const;
  bool has_alternative_locked(const Rank& rank) const;
  void block_locked(Rank& rank, const Status& why);
  std::string activate_locked(const Rank& rank);
  void switched_locked();
  Status reasons_locked(std::size_t below_tier) const;
  Result<Opened> try_open(std::size_t lane, std::size_t rank, Deadline deadline);
  std::size_t load_of(std::size_t lane) const { return lane == spare_lane_ ? 0 : 1; }
  std::vector<std::size_t> candidates_locked(std::size_t lane, std::size_t current) const;
  Choice choose(std::size_t lane, std::size_t current, const std::vector<std::size_t>& tried);

  const PeerContext peer_;
  Counters& counters_;
  mutable std::mutex mutex_;
  std::vector<Rank> ranks_;       // by tier; the fields that change are guarded by mutex_
  bool nothing_beats_first_;      // constant: the best transport has one path
  std::size_t spare_lane_;        // constant
  std::size_t active_ = kNoRank;  // tier in use; guarded by mutex_
  std::uint64_t switches_ = 0;    // guarded by mutex_
};

}  // namespace kvferry
