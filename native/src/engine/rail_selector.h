// Chooses the transport for one peer: ranked, best first; a transport that fails is set aside for a while and tried
// again later, so traffic comes back to the better path. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/counters.h"
#include "transport/transport.h"

namespace kvferry {

class RailSelector {
 public:
  static constexpr std::size_t kNoRank = ~std::size_t{0};
  struct Opened {
    std::unique_ptr<Rail> rail;
    std::size_t rank = 0;
  };

  // `ranked` outlives the selector and is not empty.
  RailSelector(std::vector<Transport*> ranked, PeerContext peer, Counters& counters);

  // How many lanes the best transport that is not set aside can use.
  std::size_t lanes_wanted() const;
  // True if a better transport than `rank` is worth a try now.
  bool better_than(std::size_t rank) const;
  // A rail of the best transport that can be reached, of a rank below `below`. Blocks until `deadline` at most.
  Result<Opened> open(std::size_t lane, std::size_t below, Deadline deadline);
  void released(std::size_t rank);                           // a rail from open() was destroyed
  void report_failure(std::size_t rank, const Status& why);  // a rail broke in use
  void report_success(std::size_t rank);

  std::uint64_t switches() const;  // how often the transport in use changed
  std::string active() const;      // name of the transport in use, "" before the first
  std::string note() const;        // why this one

 private:
  struct Rank {
    Transport* transport = nullptr;
    std::size_t live_rails = 0;
    unsigned failures_in_a_row = 0;
    milliseconds backoff{0};  // 0: not set aside
    Clock::time_point blocked_until{};
    Status reason;
  };
  bool blocked_locked(const Rank& rank) const;
  void block_locked(Rank& rank, const Status& why);
  std::string activate_locked(std::size_t rank);
  Status reasons_locked(std::size_t below) const;
  Result<Opened> try_open(std::size_t rank, Deadline deadline);
  std::vector<std::size_t> candidates(std::size_t lane, std::size_t below) const;

  const PeerContext peer_;
  Counters& counters_;
  mutable std::mutex mutex_;
  std::vector<Rank> ranks_;       // guarded by mutex_
  std::size_t active_ = kNoRank;  // guarded by mutex_
  std::uint64_t switches_ = 0;    // guarded by mutex_
};

}  // namespace kvferry
