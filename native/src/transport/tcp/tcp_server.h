// The owner's side of one data connection: answers READ and WRITE for registered regions. Used by one thread.
#pragma once

#include <sys/uio.h>

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/counters.h"
#include "base/socket.h"
#include "memory/region_table.h"
#include "transport/tcp/list_store.h"
#include "transport/tcp/mixed_payload.h"
#include "wire/frame_reader.h"
#include "wire/messages.h"

namespace kvferry {

class TcpServer {
 public:
  // Called with the number that the initiator gave the connection, before anything is read or written for it. Not OK:
  // the connection has to end (it was fenced).
  using Announce = std::function<Status(std::uint32_t connection)>;
  struct Options {
    milliseconds stall_timeout;  // a peer that makes no progress within a request is cut off
    Announce announce;
  };
  // All referred to outlive the server.
  TcpServer(Channel& channel, const Interrupt& interrupt, const RegionTable& regions, Counters& counters,
            Options options)
      : channel_(channel),
        interrupt_(interrupt),
        regions_(regions),
        counters_(counters),
        options_(std::move(options)),
        reader_(channel) {}

  Status serve();  // until the peer hangs up (kPeerLost), the interrupt (kCancelled) or an error

 private:
  using Pieces = std::span<const wire::PieceDescriptor>;

  Wait request_wait() const;
  Status handle(const FrameReader::View& frame);
  Status check_number(std::uint64_t request_id);
  Result<Pieces> pieces_of(const FrameHeader& header, const std::vector<wire::PieceDescriptor>& sent,
                           std::uint32_t slot);
  Status handle_read(const FrameReader::View& frame);
  Status handle_write(const FrameReader::View& frame);
  Status receive_payload(Pieces pieces);

  // Sets addresses_ and codes_, one per piece, and pins the regions until release_pins(). True if none is refused.
  bool locate(Pieces pieces, Op op);
  Code locate(const wire::PieceDescriptor& piece, Op op, std::byte** address);
  Result<std::uint32_t> checksum_of(std::size_t piece, std::uint64_t length);
  void put_discarded(std::uint64_t length);
  void release_pins() { pins_.clear(); }

  Channel& channel_;
  const Interrupt& interrupt_;
  const RegionTable& regions_;
  Counters& counters_;
  const Options options_;
  FrameReader reader_;
  std::uint32_t number_ = 0;  // 0: not known yet
  ListStore lists_;
  std::vector<RegionTable::Pin> pins_;  // those of the request at hand
  std::vector<std::byte*> addresses_;   // scratch, as are the rest: a request allocates nothing
  std::vector<Code> codes_;
  std::vector<MemoryPlace> places_;
  MixedPayload mixed_;  // used if a piece lies on an accelerator
  std::vector<iovec> segments_;
  Bytes head_;
  wire::Read read_;
  wire::ReadData read_data_;
  wire::Write write_;
  wire::WriteAck write_ack_;
  std::vector<std::byte> discard_;  // where refused payload goes
};

}  // namespace kvferry
