#include "transport/tcp/tcp_rail.h"

#include <string>
#include <utility>

#include "base/crc32c.h"
#include "base/deadline.h"
#include "transport/greeting.h"

namespace kvferry {

TcpRail::TcpRail(Connection connection, bool checksum)
    : connection_(std::move(connection)), reader_(connection_.channel), checksum_(checksum) {}

Status TcpRail::execute(const Batch& batch, std::span<Status> results, Deadline deadline,
                        const std::atomic<bool>& cancelled) {
  first_unfinished_ = sent_ = answered_ = 0;
  if (interrupted_.exchange(false)) connection_.interrupt.clear();  // meant for an earlier job, or `cancelled` says it
  const Wait wait{deadline, &connection_.interrupt, connection_.link_timeout, batch.gate};
  const Status status = pipeline(batch, results, wait, cancelled);
  if (status.ok()) return {};
  Status why = status.with_context("tcp to " + connection_.endpoint.to_string());
  Status unconfirmed;
  if (batch.op == Op::kWrite && sent_ != answered_) unconfirmed = fence();
  if (!unconfirmed.ok()) {
    why = {why.code(), why.message() + "; " + std::string(kMayStillLand) + unconfirmed.message()};
  }
  for (std::size_t run = first_unfinished_; run < batch.runs.size(); ++run) {
    if (results[run].ok()) results[run] = why;
  }
  return unconfirmed.ok() ? why : Status();  // what may still land must not be written again by another rail
}

// What of the requests under way has left this process is written by the owner whenever it gets to it.
Status TcpRail::fence() {
  abort_connection(connection_.channel.take_fd());
  if (!connection_.fence) return {Code::kUnsupported, "the owner cannot be asked to stop"};
  return connection_.fence(connection_.number, deadline_in(kFencePatience));
}

Status TcpRail::pipeline(const Batch& batch, std::span<Status> results, const Wait& wait,
                         const std::atomic<bool>& cancelled) {
  if (connection_.channel.fd() < 0)
    return {Code::kPeerLost, "the connection was given up after a write without an end"};
  RequestCutter cutter(batch.runs);
  bool more = true;
  for (;;) {
    if (cancelled.load(std::memory_order_relaxed)) return {Code::kCancelled, "cancelled"};
    while (more && sent_ - answered_ < kWindow) {
      TcpRequest& request = window_[sent_ % kWindow];
      more = cutter.next(&request);
      if (!more) break;
      ++sent_;
      KVF_RETURN_IF_ERROR(send_request(batch, &request, wait, cancelled));
    }
    if (sent_ == answered_) return {};
    const TcpRequest& request = window_[answered_ % kWindow];
    KVF_RETURN_IF_ERROR(receive_reply(batch.op, request, results, wait, cancelled));
    const wire::PieceDescriptor& last = request.pieces.back();
    const RunOp& run = batch.runs[request.run.back()];
    const bool run_ends = last.offset + last.length == run.remote_offset + run.length;
    first_unfinished_ = request.run.back() + (run_ends ? 1 : 0);
    ++answered_;
  }
}

MemoryPlace TcpRail::place_of(const std::byte* data, std::uint64_t length) const {
  return connection_.place_of ? connection_.place_of(data, length) : MemoryPlace();
}

void TcpRail::add_local(std::byte* data, std::uint64_t length) {
  segments_.push_back({data, length});
  mixed_.add(data, length, place_of(data, length));
}

Status TcpRail::send_request(const Batch& batch, TcpRequest* request, const Wait& wait,
                             const std::atomic<bool>& cancelled) {
  request->id = std::uint64_t{connection_.number} << 32 | ++last_request_;
  const ListSlots::Use list = lists_.use(batch.list, static_cast<std::uint32_t>(sent_), request->pieces.size());
  checksums_.clear();
  segments_.assign(1, iovec{});
  mixed_.clear();
  for (std::size_t i = 0; batch.op == Op::kWrite && i < request->pieces.size(); ++i) {
    const std::size_t length = request->pieces[i].length;
    std::byte* const data = request->local[i];
    add_local(data, length);
    if (!checksum_) continue;
    const GatePass pass(wait.gate);
    if (!pass.inside()) return gate_closed();
    KVF_ASSIGN_OR_RETURN(const std::uint32_t sum,
                         mixed_.checksum(data, length, place_of(data, length), wait, cancelled));
    checksums_.push_back(sum);
  }
  ByteWriter writer = begin_frame(std::move(head_));
  const std::span<const wire::PieceDescriptor> pieces(request->pieces);
  wire::put_request(writer, list.known ? pieces.first(0) : pieces, list.slot, checksums_);
  const int flags = (checksum_ ? kFlagChecksum : 0) | (list.forget ? kFlagForgetLists : 0);
  head_ = connection_.channel.finish(std::move(writer), batch.op == Op::kRead ? FrameType::kRead : FrameType::kWrite,
                                     request->id, static_cast<std::uint16_t>(flags));
  if (mixed_.has_device_memory()) return mixed_.send(connection_.channel, head_, wait, cancelled);
  segments_[0] = {head_.data(), head_.size()};
  return connection_.channel.send_vectored(segments_, wait);
}

Status TcpRail::receive_reply(Op op, const TcpRequest& request, std::span<Status> results, const Wait& wait,
                              const std::atomic<bool>& cancelled) {
  // The answer to a single request takes its time: no use in looking before there is something.
  if (sent_ - answered_ == 1 && !reader_.has_read_ahead()) {
    KVF_RETURN_IF_ERROR(connection_.channel.wait_readable(wait));
  }
  KVF_ASSIGN_OR_RETURN(const FrameReader::View frame, reader_.next(wait));
  const FrameType type = frame.header.type;
  if (type == FrameType::kError) return status_of_error_frame(frame.body);
  const FrameType wanted = op == Op::kRead ? FrameType::kReadData : FrameType::kWriteAck;
  if (type != wanted || frame.header.request_id != request.id) {
    return {Code::kProtocolError, "got " + std::string(frame_type_name(type)) + " for request " +
                                      std::to_string(frame.header.request_id) + ", waited for " +
                                      std::string(frame_type_name(wanted)) + " for " + std::to_string(request.id)};
  }
  return op == Op::kRead ? receive_read_data(frame, request, results, wait, cancelled)
                         : receive_write_ack(frame, request, results);
}

namespace {

Status piece_error(Code code, const wire::PieceDescriptor& piece) {
  return {code, "refused by the owner: region " + std::to_string(piece.region.id) + " generation " +
                    std::to_string(piece.region.generation) + ", offset " + std::to_string(piece.offset) + ", length " +
                    std::to_string(piece.length) + ": " + std::string(code_name(code))};
}

}  // namespace

Status TcpRail::receive_read_data(const FrameReader::View& frame, const TcpRequest& request, std::span<Status> results,
                                  const Wait& wait, const std::atomic<bool>& cancelled) {
  KVF_RETURN_IF_ERROR(read_data_.parse(frame.body));
  const std::vector<wire::PieceResult>& replies = read_data_.results;
  if (!replies.empty() && replies.size() != request.pieces.size()) {
    return {Code::kProtocolError, "READ_DATA answers another number of pieces"};
  }
  segments_.clear();
  mixed_.clear();
  std::uint64_t expected = 0;
  for (std::size_t i = 0; i < request.pieces.size(); ++i) {
    if (replies.empty() || replies[i].code == Code::kOk) {
      add_local(request.local[i], request.pieces[i].length);
      expected += request.pieces[i].length;
    } else {
      results[request.run[i]] = piece_error(replies[i].code, request.pieces[i]);
    }
  }
  if (expected != read_data_.payload_bytes) return {Code::kProtocolError, "READ_DATA announces another length"};
  const bool has_checksums = (frame.header.flags & kFlagChecksum) != 0;
  if (has_checksums != checksum_ || (has_checksums && replies.empty())) {
    return {Code::kProtocolError, "READ_DATA lacks the checksums asked for, or has others"};
  }
  KVF_RETURN_IF_ERROR(mixed_.has_device_memory() ? mixed_.receive(reader_, wait, cancelled)
                                                 : reader_.payload(&segments_, wait));
  return checksum_ ? verify(request, wait, cancelled) : Status();
}

// Wrong bytes break the rail: whatever spoiled them may have spoiled the stream as well.
Status TcpRail::verify(const TcpRequest& request, const Wait& wait, const std::atomic<bool>& cancelled) {
  const GatePass pass(wait.gate);
  if (!pass.inside()) return gate_closed();
  for (std::size_t i = 0; i < request.pieces.size(); ++i) {
    const wire::PieceResult& reply = read_data_.results[i];
    if (reply.code != Code::kOk) continue;
    std::byte* const data = request.local[i];
    const std::uint64_t length = request.pieces[i].length;
    KVF_ASSIGN_OR_RETURN(const std::uint32_t sum,
                         mixed_.checksum(data, length, place_of(data, length), wait, cancelled));
    if (sum != reply.crc32c) {
      return {Code::kDataCorrupt, "checksum of region " + std::to_string(request.pieces[i].region.id) + ", offset " +
                                      std::to_string(request.pieces[i].offset) + " is wrong"};
    }
  }
  return {};
}

Status TcpRail::receive_write_ack(const FrameReader::View& frame, const TcpRequest& request,
                                  std::span<Status> results) {
  KVF_RETURN_IF_ERROR(write_ack_.parse(frame.body));
  const std::vector<Code>& codes = write_ack_.results;
  if (codes.empty()) return {};
  if (codes.size() != request.pieces.size()) {
    return {Code::kProtocolError, "WRITE_ACK answers another number of pieces"};
  }
  for (std::size_t i = 0; i < request.pieces.size(); ++i) {
    if (codes[i] == Code::kDataCorrupt) return {codes[i], "the owner received bytes with a wrong checksum"};
    if (codes[i] != Code::kOk) results[request.run[i]] = piece_error(codes[i], request.pieces[i]);
  }
  return {};
}

}  // namespace kvferry
