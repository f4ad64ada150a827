#include "wire/channel.h"

#include <poll.h>

#include <array>
#include <string>

namespace kvferry {

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

Bytes Channel::encode(FrameType type, std::uint64_t request_id, ByteView body, std::uint16_t flags) {
  Bytes out = encode_frame(type, request_id, body, flags);
  if (!send_tags_) return out;
  const ByteView header = ByteView(out).first(kFrameHeaderBytes);
  const wire::FrameTag tag = send_tags_->next(header, body);
  out.insert(out.end(), as_byte_view(tag).begin(), as_byte_view(tag).end());
  return out;
}

Result<Frame> Channel::receive(const Wait& wait, std::size_t max_body) {
  if (!receive_tags_) return recv_frame(fd_.get(), wait, max_body);
  std::array<std::byte, kFrameHeaderBytes> bytes{};
  KVF_ASSIGN_OR_RETURN(const FrameHeader header, recv_frame_header(fd_.get(), bytes, wait, max_body));
  Frame frame{header, Bytes(header.body_bytes), {}};
  wire::FrameTag tag{};
  std::array<iovec, 2> segments{iovec{frame.body.data(), frame.body.size()}, iovec{tag.data(), tag.size()}};
  if (const Status got = recv_vectored(segments, wait); !got.ok()) {
    return got.with_context(std::string(frame_type_name(header.type)) + " body");
  }
  if (!equal_constant_time(tag, receive_tags_->next(bytes, frame.body))) {
    return {Code::kUnauthenticated, std::string(frame_type_name(header.type)) +
                                        " with a wrong tag: forged, changed, repeated or out of its place"};
  }
  KVF_RETURN_IF_ERROR(header.check_body(frame.body));
  return frame;
}

Status Channel::wait_readable(const Wait& wait) { return wait_for(fd_.get(), POLLIN, wait); }

}  // namespace kvferry
