// The owner's side of one data connection: answers READ and WRITE for registered regions. Used by one thread.
#pragma once

#include <sys/uio.h>

#include <vector>

#include "base/counters.h"
#include "base/socket.h"
#include "memory/region_table.h"
#include "wire/channel.h"
#include "wire/messages.h"

namespace kvferry {

class TcpServer {
 public:
  // All referred to outlive the server. A peer that makes no progress within a request for `stall_timeout` is cut off.
  TcpServer(Channel& channel, const Interrupt& interrupt, const RegionTable& regions, Counters& counters,
            milliseconds stall_timeout)
      : channel_(channel),
        interrupt_(interrupt),
        regions_(regions),
        counters_(counters),
        stall_timeout_(stall_timeout) {}

  Status serve();  // until the peer hangs up (kPeerLost), the interrupt (kCancelled) or an error

 private:
  Wait request_wait() const;
  Status handle(const Frame& frame);
  Status handle_read(const Frame& frame);
  Status handle_write(const Frame& frame);
  Status discard_or_receive(const std::vector<wire::PieceDescriptor>& pieces, const std::vector<Code>& results);

  // Address of a piece, with its region pinned until release_pins().
  Result<std::byte*> locate(const wire::PieceDescriptor& piece, Op op);
  void release_pins() { pins_.clear(); }

  Channel& channel_;
  const Interrupt& interrupt_;
  const RegionTable& regions_;
  Counters& counters_;
  const milliseconds stall_timeout_;
  std::vector<RegionTable::Pin> pins_;  // those of the request at hand
  std::vector<std::byte*> addresses_;   // scratch: one per piece, null where refused
  std::vector<iovec> segments_;         // scratch
  std::vector<std::byte> discard_;      // where refused payload goes
};

}  // namespace kvferry
