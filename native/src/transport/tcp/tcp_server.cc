#include "transport/tcp/tcp_server.h"

#include <algorithm>
#include <string>

#include "base/crc32c.h"
#include "base/deadline.h"
#include "base/one_sided.h"
#include "base/thread_turn.h"
#include "memory/address_range.h"

namespace kvferry {
namespace {

constexpr std::size_t kDiscardBytes = 64u << 10;

constexpr std::uint64_t kFewBytes = 256u << 10;  // as much as small transfers have

const std::atomic<bool> kNeverCancelled{false};  // a server's work ends by its interrupt

// Small requests, which come over a connection of their own while large ones are under way, go before large ones.
void choose_turns(std::span<const wire::PieceDescriptor> pieces) {
  std::uint64_t bytes = 0;
  for (const wire::PieceDescriptor& piece : pieces) bytes += piece.length;
  take_long_turns(bytes > kFewBytes);
}

}  // namespace

Wait TcpServer::request_wait() const { return Wait{deadline_in(options_.stall_timeout), &interrupt_}; }

Status TcpServer::serve() {
  for (;;) {
    if (!reader_.has_read_ahead()) {
      // Between requests the peer may rest as long as its control connection lives: then the interrupt is set.
      KVF_RETURN_IF_ERROR(channel_.wait_readable(Wait{deadline_in(kLongestWait), &interrupt_}));
    }
    KVF_ASSIGN_OR_RETURN(const FrameReader::View frame, reader_.next(request_wait()));
    const Status status = handle(frame);
    release_pins();
    KVF_RETURN_IF_ERROR(status);
  }
}

Status TcpServer::handle(const FrameReader::View& frame) {
  const FrameType type = frame.header.type;
  if (type != FrameType::kRead && type != FrameType::kWrite) {
    return {Code::kProtocolError, "unexpected " + std::string(frame_type_name(type)) + " on a data connection"};
  }
  KVF_RETURN_IF_ERROR(check_number(frame.header.request_id));
  return type == FrameType::kRead ? handle_read(frame) : handle_write(frame);
}

Status TcpServer::check_number(std::uint64_t request_id) {
  const auto number = static_cast<std::uint32_t>(request_id >> 32);
  if (number == 0 || (number_ != 0 && number != number_)) {
    return {Code::kProtocolError, "request id " + std::to_string(request_id) + " is of no or of another connection"};
  }
  if (std::exchange(number_, number) == number) return {};
  return options_.announce(number);
}

Result<TcpServer::Pieces> TcpServer::pieces_of(const FrameHeader& header,
                                               const std::vector<wire::PieceDescriptor>& sent, std::uint32_t slot) {
  if ((header.flags & kFlagForgetLists) != 0) lists_.clear();
  if (sent.empty()) return lists_.find(slot);
  if (slot != 0) KVF_RETURN_IF_ERROR(lists_.remember(slot, sent));
  return Pieces(sent);
}

bool TcpServer::locate(Pieces pieces, Op op) {
  addresses_.resize(pieces.size());
  codes_.resize(pieces.size());
  places_.assign(pieces.size(), MemoryPlace());
  mixed_.clear();
  bool all = true;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    codes_[i] = locate(pieces[i], op, &addresses_[i]);
    if (codes_[i] == Code::kOk) places_[i] = pins_.back().place();
    all = all && codes_[i] == Code::kOk;
  }
  return all;
}

Code TcpServer::locate(const wire::PieceDescriptor& piece, Op op, std::byte** address) {
  // Pieces mostly name the region of the piece before; rights were checked when that was pinned.
  if (pins_.empty() || !(pins_.back().key() == piece.region)) {
    auto pin = regions_.pin_for_peer(piece.region, piece.offset, piece.length, op);
    if (!pin.ok()) return pin.status().code();
    pins_.push_back(std::move(pin).value());
  }
  const RegionTable::Pin& pin = pins_.back();
  if (!range_fits(piece.offset, piece.length, pin.length())) return Code::kOutOfRange;
  *address = pin.data() + piece.offset;
  return Code::kOk;
}

Result<std::uint32_t> TcpServer::checksum_of(std::size_t piece, std::uint64_t length) {
  const OneSidedAccess reading;
  return mixed_.checksum(addresses_[piece], length, places_[piece], request_wait(), kNeverCancelled);
}

Status TcpServer::handle_read(const FrameReader::View& frame) {
  KVF_RETURN_IF_ERROR(read_.parse(frame.body));
  KVF_ASSIGN_OR_RETURN(const Pieces pieces, pieces_of(frame.header, read_.pieces, read_.slot));
  choose_turns(pieces);
  const bool checksum = (frame.header.flags & kFlagChecksum) != 0;
  const bool all = locate(pieces, Op::kRead);
  read_data_.results.clear();
  read_data_.payload_bytes = 0;
  segments_.assign(1, iovec{});
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const bool there = codes_[i] == Code::kOk;
    const std::uint64_t length = pieces[i].length;
    std::uint32_t sum = 0;
    if (there && checksum) {
      KVF_ASSIGN_OR_RETURN(sum, checksum_of(i, length));
    }
    if (!all || checksum) read_data_.results.push_back({codes_[i], sum});
    if (!there) continue;
    segments_.push_back({addresses_[i], length});
    mixed_.add(addresses_[i], length, places_[i]);
    read_data_.payload_bytes += length;
  }
  ByteWriter writer = begin_frame(std::move(head_));
  read_data_.write_to(writer);
  head_ = channel_.finish(std::move(writer), FrameType::kReadData, frame.header.request_id,
                          checksum ? std::uint16_t{kFlagChecksum} : std::uint16_t{0});
  segments_[0] = {head_.data(), head_.size()};
  {
    const OneSidedAccess reading;
    KVF_RETURN_IF_ERROR(mixed_.has_device_memory() ? mixed_.send(channel_, head_, request_wait(), kNeverCancelled)
                                                   : channel_.send_vectored(segments_, request_wait()));
  }
  counters_.add(Counters::kServedReadBytes, read_data_.payload_bytes);
  return {};
}

Status TcpServer::handle_write(const FrameReader::View& frame) {
  const bool checksum = (frame.header.flags & kFlagChecksum) != 0;
  const std::uint64_t request_id = frame.header.request_id;
  KVF_RETURN_IF_ERROR(write_.parse(frame.body, checksum));
  KVF_ASSIGN_OR_RETURN(const Pieces pieces, pieces_of(frame.header, write_.pieces, write_.slot));
  if (checksum && write_.crc32c.size() != pieces.size()) {
    return {Code::kProtocolError, "WRITE has another number of checksums than of pieces"};
  }
  choose_turns(pieces);
  bool all = locate(pieces, Op::kWrite);
  KVF_RETURN_IF_ERROR(receive_payload(pieces));
  std::uint64_t accepted = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (codes_[i] != Code::kOk) continue;
    accepted += pieces[i].length;
    if (!checksum) continue;
    KVF_ASSIGN_OR_RETURN(const std::uint32_t sum, checksum_of(i, pieces[i].length));
    if (sum == write_.crc32c[i]) continue;
    codes_[i] = Code::kDataCorrupt;
    all = false;
  }
  release_pins();  // before the peer learns that it is done
  counters_.add(Counters::kServedWrittenBytes, accepted);
  write_ack_.results.clear();
  if (!all) write_ack_.results.assign(codes_.begin(), codes_.end());
  ByteWriter writer = begin_frame(std::move(head_));
  write_ack_.write_to(writer);
  head_ = channel_.finish(std::move(writer), FrameType::kWriteAck, request_id, 0);
  segments_.assign(1, {head_.data(), head_.size()});
  return channel_.send_vectored(segments_, request_wait());
}

void TcpServer::put_discarded(std::uint64_t length) {
  discard_.resize(kDiscardBytes);
  for (std::uint64_t left = length; left > 0;) {
    const std::uint64_t part = std::min<std::uint64_t>(left, discard_.size());
    segments_.push_back({discard_.data(), part});
    mixed_.add(discard_.data(), part, MemoryPlace());
    left -= part;
  }
}

// The payload of refused pieces is in the stream all the same.
Status TcpServer::receive_payload(Pieces pieces) {
  segments_.clear();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (codes_[i] != Code::kOk) {
      put_discarded(pieces[i].length);
      continue;
    }
    segments_.push_back({addresses_[i], pieces[i].length});
    mixed_.add(addresses_[i], pieces[i].length, places_[i]);
  }
  const OneSidedAccess writing;
  if (mixed_.has_device_memory()) return mixed_.receive(reader_, request_wait(), kNeverCancelled);
  return reader_.payload(&segments_, request_wait());
}

}  // namespace kvferry
