#include "transport/tcp/tcp_rail.h"

#include <string>
#include <utility>

#include "base/crc32c.h"
#include "transport/greeting.h"

namespace kvferry {

TcpRail::TcpRail(Channel channel, Interrupt interrupt, Endpoint endpoint, bool checksum)
    : channel_(std::move(channel)),
      interrupt_(std::move(interrupt)),
      endpoint_(std::move(endpoint)),
      checksum_(checksum) {}

Status TcpRail::execute(const Batch& batch, std::span<Status> results, Deadline deadline,
                        const std::atomic<bool>& cancelled) {
  first_unfinished_ = 0;
  interrupt_.clear();  // it was meant for an earlier job, or `cancelled` says the same
  const Status status = pipeline(batch, results, Wait{deadline, &interrupt_}, cancelled);
  if (status.ok()) return {};
  const Status why = status.with_context("tcp to " + endpoint_.to_string());
  for (std::size_t run = first_unfinished_; run < batch.runs.size(); ++run) {
    if (results[run].ok()) results[run] = why;
  }
  return why;
}

Status TcpRail::pipeline(const Batch& batch, std::span<Status> results, const Wait& wait,
                         const std::atomic<bool>& cancelled) {
  RequestCutter cutter(batch.runs);
  std::size_t sent = 0, answered = 0;
  bool more = true;
  for (;;) {
    if (cancelled.load(std::memory_order_relaxed)) return {Code::kCancelled, "cancelled"};
    while (more && sent - answered < kWindow) {
      TcpRequest& request = window_[sent % kWindow];
      more = cutter.next(&request);
      if (!more) break;
      KVF_RETURN_IF_ERROR(send_request(batch.op, &request, wait));
      ++sent;
    }
    if (sent == answered) return {};
    const TcpRequest& request = window_[answered % kWindow];
    KVF_RETURN_IF_ERROR(receive_reply(batch.op, request, results, wait));
    const wire::PieceDescriptor& last = request.pieces.back();
    const RunOp& run = batch.runs[request.run.back()];
    const bool run_ends = last.offset + last.length == run.remote_offset + run.length;
    first_unfinished_ = request.run.back() + (run_ends ? 1 : 0);
    ++answered;
  }
}

Status TcpRail::send_request(Op op, TcpRequest* request, const Wait& wait) {
  request->id = ++last_request_id_;
  const std::uint16_t flags = checksum_ ? kFlagChecksum : 0;
  if (op == Op::kRead) {
    return channel_.send(FrameType::kRead, request->id, wire::Read{request->pieces}.encode(), wait, flags);
  }
  std::vector<std::uint32_t> checksums;
  segments_.assign(1, iovec{});
  for (std::size_t i = 0; i < request->pieces.size(); ++i) {
    const std::size_t length = request->pieces[i].length;
    segments_.push_back({request->local[i], length});
    if (checksum_) checksums.push_back(crc32c({request->local[i], length}));
  }
  Bytes head = channel_.encode(FrameType::kWrite, request->id, wire::Write{request->pieces, checksums}.encode(), flags);
  segments_[0] = {head.data(), head.size()};
  return channel_.send_vectored(segments_, wait);
}

Status TcpRail::receive_reply(Op op, const TcpRequest& request, std::span<Status> results, const Wait& wait) {
  KVF_ASSIGN_OR_RETURN(const Frame frame, channel_.receive(wait));
  if (frame.header.type == FrameType::kError) return status_of_error_frame(frame.body);
  const FrameType wanted = op == Op::kRead ? FrameType::kReadData : FrameType::kWriteAck;
  if (frame.header.type != wanted || frame.header.request_id != request.id) {
    return {Code::kProtocolError, "got " + std::string(frame_type_name(frame.header.type)) + " for request " +
                                      std::to_string(frame.header.request_id) + ", waited for " +
                                      std::string(frame_type_name(wanted)) + " for " + std::to_string(request.id)};
  }
  return op == Op::kRead ? receive_read_data(frame, request, results, wait)
                         : receive_write_ack(frame, request, results);
}

namespace {

Status piece_error(Code code, const wire::PieceDescriptor& piece) {
  return {code, "refused by the owner: region " + std::to_string(piece.region.id) + " generation " +
                    std::to_string(piece.region.generation) + ", offset " + std::to_string(piece.offset) + ", length " +
                    std::to_string(piece.length) + ": " + std::string(code_name(code))};
}

}  // namespace

Status TcpRail::receive_read_data(const Frame& frame, const TcpRequest& request, std::span<Status> results,
                                  const Wait& wait) {
  KVF_ASSIGN_OR_RETURN(const wire::ReadData reply, wire::ReadData::decode(frame.body));
  if (reply.results.size() != request.pieces.size()) {
    return {Code::kProtocolError, "READ_DATA answers another number of pieces"};
  }
  segments_.clear();
  std::uint64_t expected = 0;
  for (std::size_t i = 0; i < request.pieces.size(); ++i) {
    if (reply.results[i].code == Code::kOk) {
      segments_.push_back({request.local[i], request.pieces[i].length});
      expected += request.pieces[i].length;
    } else {
      results[request.run[i]] = piece_error(reply.results[i].code, request.pieces[i]);
    }
  }
  if (expected != reply.payload_bytes) return {Code::kProtocolError, "READ_DATA announces another length"};
  KVF_RETURN_IF_ERROR(channel_.recv_vectored(segments_, wait));
  if ((frame.header.flags & kFlagChecksum) == 0) {
    return checksum_ ? Status(Code::kProtocolError, "READ_DATA lacks the checksums asked for") : Status();
  }
  return verify(request, reply.results);
}

// Wrong bytes break the rail: whatever spoiled them may have spoiled the stream as well.
Status TcpRail::verify(const TcpRequest& request, std::span<const wire::PieceResult> replies) {
  for (std::size_t i = 0; i < request.pieces.size(); ++i) {
    if (replies[i].code != Code::kOk) continue;
    if (crc32c({request.local[i], request.pieces[i].length}) != replies[i].crc32c) {
      return {Code::kDataCorrupt, "checksum of region " + std::to_string(request.pieces[i].region.id) + ", offset " +
                                      std::to_string(request.pieces[i].offset) + " is wrong"};
    }
  }
  return {};
}

Status TcpRail::receive_write_ack(const Frame& frame, const TcpRequest& request, std::span<Status> results) {
  KVF_ASSIGN_OR_RETURN(const wire::WriteAck ack, wire::WriteAck::decode(frame.body));
  if (ack.results.size() != request.pieces.size()) {
    return {Code::kProtocolError, "WRITE_ACK answers another number of pieces"};
  }
  for (std::size_t i = 0; i < request.pieces.size(); ++i) {
    const Code code = ack.results[i];
    if (code == Code::kDataCorrupt) return {code, "the owner received bytes with a wrong checksum"};
    if (code != Code::kOk) results[request.run[i]] = piece_error(code, request.pieces[i]);
  }
  return {};
}

}  // namespace kvferry
