#include "engine/control_link.h"

#include <poll.h>

#include <algorithm>

#include "base/deadline.h"

namespace kvferry {
namespace {

constexpr milliseconds kFinishFrame{5000};  // for a peer that stopped reading in the middle of a frame

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
  Status status = wait_for(channel_.fd(), POLLOUT, Wait{deadline});
  if (status.ok()) {
    const Deadline finish = std::max(deadline, deadline_in(kFinishFrame));
    status = channel_.send(type, request_id, body, Wait{finish});
    *broken = !status.ok();
  }
  release_turn();
  return status;
}

Result<Frame> ControlLink::receive(Deadline deadline) { return channel_.receive(Wait{deadline}); }

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
