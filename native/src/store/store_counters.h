// What a node's store has counted since it was made. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>

namespace kvferry::store {

class StoreCounters {
 public:
  enum Id : std::uint8_t {
    kPuts,          // commits that made an object
    kPutBytes,      // of these
    kPutsExisting,  // reservations and commits of what was there already
    kPutConflicts,
    kPutsAborted,
    kPutsRefused,  // no room: everything pinned or reserved
    kPutLeasesEnded,
    kPins,
    kPinsOfAbsent,
    kPinLeasesEnded,
    kRemoved,
    kExpired,
    kEvicted,  // left the node for want of room
    kEvictedBytes,
    kEvictedInPut,  // of these, because a put had to wait for room
    kKeptByPins,    // objects whose memory stayed in use by readers after they were gone
    kClientsGone,   // processes that ended without leaving
    kDemoted,       // moved from memory to SSD
    kDemotedBytes,
    kDemotedRemote,  // taken by another node instead
    kSsdHits,        // brought back from SSD
    kSsdHitBytes,
    kSsdWritten,  // objects appended to the log
    kSsdSkipped,  // evicted although they belonged to SSD: it was too slow, full or failing
    kSsdEvicted,  // given up there for want of room
    kSsdErrors,
    kSsdCorrupt,    // objects dropped because what was read was not what had been written
    kSsdRecovered,  // found when the log was opened
    kQuickPuts,     // of kPuts, those that took no message
    kQuickRefused,  // puts without a message that were none: a client wrote nonsense
    kCount,
  };

  void add(Id id, std::uint64_t n = 1) { values_[id].fetch_add(n, std::memory_order_relaxed); }
  std::uint64_t get(Id id) const { return values_[id].load(std::memory_order_relaxed); }
  std::map<std::string, std::uint64_t> snapshot() const;

 private:
  std::array<std::atomic<std::uint64_t>, kCount> values_{};
};

}  // namespace kvferry::store
