// Engine-wide counters. Fixed ones are relaxed atomics; drops by reason are a small bounded map. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "kvferry/status.h"

namespace kvferry {

class Counters {
 public:
  enum Id : std::uint8_t {
    kReadBytes,     // moved by our own READ transfers
    kWrittenBytes,  // moved by our own WRITE transfers
    kShmBytes,      // of these, by transport
    kTcpBytes,
    kFileBytes,           // to and from our own files
    kLocalBytes,          // within our own memory
    kServedReadBytes,     // sent to peers that read from us over a socket (shm peers leave no trace here)
    kServedWrittenBytes,  // received from peers that wrote to us over a socket
    kTransfersSubmitted,
    kTransfersFailed,
    kPieces,  // settled pieces, good or bad
    kFailedPieces,
    kRetriedSlices,
    kRailsOpened,
    kRailFailures,
    kRailRecoveries,  // a rail that was set aside works again
    kRailSwitches,    // a peer's traffic moved to another transport or rail
    kPeersConnected,
    kPeersLost,
    kConnectionsAccepted,
    kConnectionsDropped,
    kMessagesSent,
    kMessagesReceived,
    kCount,
  };

  static Id bytes_by(std::string_view transport);
  void add(Id id, std::uint64_t n = 1) { fixed_[id].fetch_add(n, std::memory_order_relaxed); }
  std::uint64_t get(Id id) const { return fixed_[id].load(std::memory_order_relaxed); }
  void add_failed_pieces(Code code, std::uint64_t n);
  // An inbound connection was ended by us. `reason` is one of our own constants, snake_case.
  void add_dropped(std::string_view reason);
  // Every fixed counter, plus "failed_pieces_<code>_total" and "dropped_connections_<reason>_total" where not zero.
  std::map<std::string, std::uint64_t> snapshot() const;

 private:
  std::array<std::atomic<std::uint64_t>, kCount> fixed_{};
  std::array<std::atomic<std::uint64_t>, 32> failed_by_code_{};
  mutable std::mutex mutex_;
  std::map<std::string, std::uint64_t, std::less<>> dropped_;  // guarded by mutex_
};

}  // namespace kvferry
