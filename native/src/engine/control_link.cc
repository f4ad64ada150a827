#include "engine/control_link.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/deadline.h"

namespace kvferry {
namespace {

constexpr milliseconds kFinishFrame{5000};  // for a peer that stopped reading in the middle of a frame
constexpr std::size_t kAlwaysFits = 2048;   // a socket that is writable has a third of its buffer free

}  // namespace

Status ControlLink::acquire_turn(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!turn_.wait_until(lock, deadline, [&] { return !sending_ || closed_; })) {
    return {Code::kDeadlineExceeded, "other senders keep the control connection busy"};
  }
  if (closed_) return {Code::kPeerLost, "the control connection is closed"};
  sending_ = true;
  return {};
}

void ControlLink::release_turn() {
  {
    std::lock_guard lock(mutex_);
    sending_ = false;
  }
  turn_.notify_all();
}

Status ControlLink::send(FrameType type, std::uint64_t request_id, ByteView body, Deadline deadline, bool* broken) {
  *broken = false;
  KVF_RETURN_IF_ERROR(acquire_turn(deadline));
  const Status status = send_in_turn(type, request_id, body, deadline, broken);
  release_turn();
  return status;
}

Status ControlLink::try_send(FrameType type, std::uint64_t request_id, ByteView body, bool* broken) {
  *broken = false;
  if (!acquire_turn(Deadline::min()).ok()) return {Code::kUnavailable, "somebody else is sending"};
  Status status(Code::kUnavailable, "the socket has no room");
  if (body.size() <= kAlwaysFits || has_room_for(body.size())) {
    const Status sent = send_in_turn(type, request_id, body, Deadline::min(), broken);
    if (*broken || sent.code() != Code::kDeadlineExceeded) status = sent;
  }
  release_turn();
  return status;
}

// The kernel counts its own overhead against the buffer: reckon with as much again.
bool ControlLink::has_room_for(std::size_t bytes) const {
  int queued = 0, room = 0;
  socklen_t length = sizeof(room);
  if (::ioctl(channel_.fd(), SIOCOUTQ, &queued) != 0) return false;
  if (::getsockopt(channel_.fd(), SOL_SOCKET, SO_SNDBUF, &room, &length) != 0) return false;
  return (static_cast<std::size_t>(queued) + bytes) * 2 <= static_cast<std::size_t>(room);
}

Status ControlLink::send_in_turn(FrameType type, std::uint64_t request_id, ByteView body, Deadline deadline,
                                 bool* broken) {
  Status status = wait_for(channel_.fd(), POLLOUT, Wait{deadline});
  if (status.ok()) {
    const Deadline finish = std::max(deadline, deadline_in(kFinishFrame));
    status = channel_.send(type, request_id, body, Wait{finish});
    *broken = !status.ok();
  }
  return status;
}

Result<Frame> ControlLink::receive(Deadline deadline) { return reader_.next_of_any_length(Wait{deadline}); }

void ControlLink::shut_down() {
  std::lock_guard lock(mutex_);
  if (!closed_) kvferry::shut_down(channel_.fd());
}

void ControlLink::close() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  kvferry::shut_down(channel_.fd());
  turn_.notify_all();
  turn_.wait(lock, [&] { return !sending_; });  // bounded: the socket is shut down
  channel_.close();
}

}  // namespace kvferry
