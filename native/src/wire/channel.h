// One connection between two nodes: its socket, TLS on it if both want that, and the tags of its frames once the
// handshake has agreed on keys for them. Raw payload goes through the same object, untagged.
//
// One thread at a time may send and another receive. shut_down() of the descriptor, from any thread, ends the waits of
// both.
#pragma once

#include <poll.h>

#include <memory>
#include <optional>

#include "base/socket.h"
#include "base/tls.h"
#include "wire/frame.h"
#include "wire/frame_tag.h"

namespace kvferry {

class Channel {
 public:
  explicit Channel(UniqueFd fd) : fd_(std::move(fd)) {}
  Channel(Channel&&) = default;

  int fd() const { return fd_.get(); }
  UniqueFd take_fd();  // TLS ends with it, and what was read ahead is lost
  void close();        // nobody may be using it

  // Everything from now on goes through TLS. As TlsContext::open().
  Status start_tls(const TlsContext& context, TlsSide side, const Wait& wait);
  const TlsSession* tls() const { return tls_.get(); }  // nullptr: the socket is plain
  // From now on every frame carries a tag. Not while another thread uses the channel.
  void authenticate(wire::FrameTagger send, wire::FrameTagger receive);

  Status send(FrameType type, std::uint64_t request_id, ByteView body, const Wait& wait, std::uint16_t flags = 0);
  // Ends what begin_frame() began: header and tag. Frames are numbered as they are finished: send them in that order,
  // and before the next send().
  Bytes finish(ByteWriter&& writer, FrameType type, std::uint64_t request_id, std::uint16_t flags = 0);
  // As recv_frame(); kUnauthenticated if the tag is not the one that the next frame of the peer must have.
  Result<Frame> receive(const Wait& wait, std::size_t max_body = kMaxBodyBytes);

  // For FrameReader: how long the tag behind each body is, and whether the next frame's is right.
  std::size_t tag_bytes() const { return receive_tags_ ? wire::kFrameTagBytes : 0; }
  Status check_frame(const FrameHeader& header, ByteView header_bytes, ByteView body, ByteView tag);

  // Raw bytes: see base/socket.h.
  Status send_vectored(std::span<iovec> segments, const Wait& wait) {
    return tls_ ? tls_->send_vectored(segments, wait) : kvferry::send_vectored(fd_.get(), segments, wait);
  }
  Status recv_vectored(std::span<iovec> segments, const Wait& wait) {
    return tls_ ? tls_->recv_vectored(segments, wait) : kvferry::recv_vectored(fd_.get(), segments, wait);
  }
  Result<std::size_t> recv_some(std::span<const iovec> segments, const Wait& wait) {
    return tls_ ? tls_->recv_some(segments, wait) : kvferry::recv_some(fd_.get(), segments, wait);
  }
  // Until there is something to receive (or the peer hung up: the next call tells).
  Status wait_readable(const Wait& wait) {
    return tls_ ? tls_->wait_readable(wait) : wait_for(fd_.get(), POLLIN, wait);
  }

 private:
  UniqueFd fd_;
  std::unique_ptr<TlsSession> tls_;             // on fd_
  std::optional<wire::FrameTagger> send_tags_;  // both or neither
  std::optional<wire::FrameTagger> receive_tags_;
};

}  // namespace kvferry
