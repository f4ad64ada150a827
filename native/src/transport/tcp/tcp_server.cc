#include "transport/tcp/tcp_server.h"

#include <algorithm>

#include "base/crc32c.h"
#include "base/deadline.h"
#include "base/one_sided.h"

namespace kvferry {
namespace {

constexpr std::size_t kDiscardBytes = 64u << 10;

std::uint32_t checksum_of(const std::byte* data, std::size_t length) {
  const OneSidedAccess reading;
  return crc32c({data, length});
}

}  // namespace

Wait TcpServer::request_wait() const { return Wait{deadline_in(stall_timeout_), &interrupt_}; }

Status TcpServer::serve() {
  for (;;) {
    // Between requests the peer may rest as long as its control connection lives: then the interrupt is set.
    KVF_RETURN_IF_ERROR(channel_.wait_readable(Wait{deadline_in(kLongestWait), &interrupt_}));
    KVF_ASSIGN_OR_RETURN(const Frame frame, channel_.receive(request_wait()));
    const Status status = handle(frame);
    release_pins();
    KVF_RETURN_IF_ERROR(status);
  }
}

Status TcpServer::handle(const Frame& frame) {
  switch (frame.header.type) {
    case FrameType::kRead:
      return handle_read(frame);
    case FrameType::kWrite:
      return handle_write(frame);
    default:
      return {Code::kProtocolError,
              "unexpected " + std::string(frame_type_name(frame.header.type)) + " on a data connection"};
  }
}

Result<std::byte*> TcpServer::locate(const wire::PieceDescriptor& piece, Op op) {
  // Pieces mostly name the region of the piece before; rights were checked when that was pinned.
  if (!pins_.empty() && pins_.back().key() == piece.region) return pins_.back().at(piece.offset, piece.length);
  KVF_ASSIGN_OR_RETURN(RegionTable::Pin pin, regions_.pin_for_peer(piece.region, piece.offset, piece.length, op));
  std::byte* const address = pin.data() + piece.offset;
  pins_.push_back(std::move(pin));
  return address;
}

Status TcpServer::handle_read(const Frame& frame) {
  KVF_ASSIGN_OR_RETURN(const wire::Read request, wire::Read::decode(frame.body));
  const bool checksum = (frame.header.flags & kFlagChecksum) != 0;
  wire::ReadData reply;
  segments_.assign(1, iovec{});
  for (const wire::PieceDescriptor& piece : request.pieces) {
    const auto address = locate(piece, Op::kRead);
    wire::PieceResult& result = reply.results.emplace_back();
    if (!address.ok()) {
      result.code = address.status().code();
      continue;
    }
    if (checksum) result.crc32c = checksum_of(*address, piece.length);
    segments_.push_back({*address, piece.length});
    reply.payload_bytes += piece.length;
  }
  Bytes head = channel_.encode(FrameType::kReadData, frame.header.request_id, reply.encode(),
                               checksum ? std::uint16_t{kFlagChecksum} : std::uint16_t{0});
  segments_[0] = {head.data(), head.size()};
  {
    const OneSidedAccess reading;
    KVF_RETURN_IF_ERROR(channel_.send_vectored(segments_, request_wait()));
  }
  counters_.add(Counters::kServedReadBytes, reply.payload_bytes);
  return {};
}

Status TcpServer::handle_write(const Frame& frame) {
  const bool checksum = (frame.header.flags & kFlagChecksum) != 0;
  KVF_ASSIGN_OR_RETURN(const wire::Write request, wire::Write::decode(frame.body, checksum));
  wire::WriteAck ack;
  addresses_.clear();
  for (const wire::PieceDescriptor& piece : request.pieces) {
    const auto address = locate(piece, Op::kWrite);
    ack.results.push_back(address.status().code());
    addresses_.push_back(address.ok() ? *address : nullptr);
  }
  KVF_RETURN_IF_ERROR(discard_or_receive(request.pieces, ack.results));
  std::uint64_t accepted = 0;
  for (std::size_t i = 0; i < request.pieces.size(); ++i) {
    if (ack.results[i] != Code::kOk) continue;
    const std::uint64_t length = request.pieces[i].length;
    accepted += length;
    if (checksum && checksum_of(addresses_[i], length) != request.crc32c[i]) ack.results[i] = Code::kDataCorrupt;
  }
  release_pins();  // before the peer learns that it is done
  counters_.add(Counters::kServedWrittenBytes, accepted);
  return channel_.send(FrameType::kWriteAck, frame.header.request_id, ack.encode(), request_wait());
}

// The payload of refused pieces is in the stream all the same.
Status TcpServer::discard_or_receive(const std::vector<wire::PieceDescriptor>& pieces,
                                     const std::vector<Code>& results) {
  segments_.clear();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (results[i] == Code::kOk) {
      segments_.push_back({addresses_[i], pieces[i].length});
      continue;
    }
    discard_.resize(kDiscardBytes);
    for (std::uint64_t left = pieces[i].length; left > 0;) {
      const std::size_t part = std::min<std::uint64_t>(left, discard_.size());
      segments_.push_back({discard_.data(), part});
      left -= part;
    }
  }
  const OneSidedAccess writing;
  return channel_.recv_vectored(segments_, request_wait());
}

}  // namespace kvferry
