#include "wire/channel.h"

#include <algorithm>
#include <array>
#include <string>

namespace kvferry {

UniqueFd Channel::take_fd() {
  tls_.reset();
  return std::move(fd_);
}

void Channel::close() {
  tls_.reset();
  fd_.reset();
}

Status Channel::start_tls(const TlsContext& context, TlsSide side, const Wait& wait) {
  KVF_ASSIGN_OR_RETURN(tls_, context.open(fd_.get(), side, wait));
  return {};
}

void Channel::authenticate(wire::FrameTagger send, wire::FrameTagger receive) {
  send_tags_.emplace(std::move(send));
  receive_tags_.emplace(std::move(receive));
}

Status Channel::send(FrameType type, std::uint64_t request_id, ByteView body, const Wait& wait, std::uint16_t flags) {
  auto header = frame_header(type, request_id, body, flags).encode();
  wire::FrameTag tag{};
  if (send_tags_) tag = send_tags_->next(header, body);
  std::array<iovec, 3> segments{iovec{header.data(), header.size()},
                                iovec{const_cast<std::byte*>(body.data()), body.size()},  // sendmsg only reads
                                iovec{tag.data(), send_tags_ ? tag.size() : 0}};
  return send_vectored(segments, wait);
}

Bytes Channel::finish(ByteWriter&& writer, FrameType type, std::uint64_t request_id, std::uint16_t flags) {
  Bytes out = end_frame(std::move(writer), type, request_id, flags);
  if (!send_tags_) return out;
  const ByteView frame(out);
  const wire::FrameTag tag = send_tags_->next(frame.first(kFrameHeaderBytes), frame.subspan(kFrameHeaderBytes));
  out.insert(out.end(), as_byte_view(tag).begin(), as_byte_view(tag).end());
  return out;
}

Status Channel::check_frame(const FrameHeader& header, ByteView header_bytes, ByteView body, ByteView tag) {
  if (receive_tags_) {
    wire::FrameTag received{};
    std::ranges::copy(tag, std::as_writable_bytes(std::span(received)).begin());
    if (!equal_constant_time(received, receive_tags_->next(header_bytes, body))) {
      return {Code::kUnauthenticated, std::string(frame_type_name(header.type)) +
                                          " with a wrong tag: forged, changed, repeated or out of its place"};
    }
  }
  return header.check_body(body);
}

Result<Frame> Channel::receive(const Wait& wait, std::size_t max_body) {
  std::array<std::byte, kFrameHeaderBytes> bytes{};
  iovec head{bytes.data(), bytes.size()};
  KVF_RETURN_IF_ERROR(recv_vectored({&head, 1}, wait));
  KVF_ASSIGN_OR_RETURN(const FrameHeader header, FrameHeader::decode(bytes, max_body));
  Frame frame{header, Bytes(header.body_bytes), {}};
  wire::FrameTag tag{};
  std::array<iovec, 2> segments{iovec{frame.body.data(), frame.body.size()},
                                iovec{tag.data(), receive_tags_ ? tag.size() : 0}};
  if (const Status got = recv_vectored(segments, wait); !got.ok()) {
    return got.with_context(std::string(frame_type_name(header.type)) + " body");
  }
  KVF_RETURN_IF_ERROR(check_frame(header, bytes, frame.body, as_byte_view(tag)));
  return frame;
}

}  // namespace kvferry
