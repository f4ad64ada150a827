// What moved to and from one peer, by transport. No lock: the pool's mutex guards it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/slice.h"
#include "kvferry/engine.h"

namespace kvferry {

class PeerTraffic {
 public:
  void slice_moved(std::string_view transport, Op op, std::uint64_t bytes);
  void slice_retried(std::string_view transport);
  void rail_failed(std::string_view transport);
  void rail_opened(std::string_view transport);
  void rail_closed(std::string_view transport);
  void transfer_ended(const TransferImpl& transfer, const TransferImpl::Outcome& outcome);

  PeerStats snapshot() const;  // without what only the pool knows

 private:
  TransportStats& of(std::string_view transport);

  std::vector<TransportStats> by_transport_;  // few
  std::uint64_t pieces_ = 0, failed_pieces_ = 0;
};

}  // namespace kvferry
