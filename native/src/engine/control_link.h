// The frames of one control connection. Any thread may send, one thread receives and, at the end, closes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/socket.h"
#include "kvferry/types.h"
#include "wire/channel.h"
#include "wire/frame_reader.h"

namespace kvferry {

class ControlLink {
 public:
  explicit ControlLink(Channel channel) : channel_(std::move(channel)) {}
  ControlLink(const ControlLink&) = delete;
  ControlLink& operator=(const ControlLink&) = delete;

  // Waits for its turn and for socket space until `deadline`; a frame once begun gets a little longer to be finished.
  // *broken is set when a frame was left unfinished: the connection is of no more use.
  Status send(FrameType type, std::uint64_t request_id, ByteView body, Deadline deadline, bool* broken);

  // As send(), but kUnavailable rather than wait: for one's turn, or because the socket has no room for all of it.
  Status try_send(FrameType type, std::uint64_t request_id, ByteView body, bool* broken);

  Result<Frame> receive(Deadline deadline);                         // receiving thread only, as what follows
  bool may_be_shared() const { return channel_.tls() == nullptr; }  // waiting for it takes no part in receiving
  Status wait_readable(Deadline deadline) { return channel_.wait_readable(Wait{deadline}); }
  bool has_read_ahead() const { return reader_.has_read_ahead(); }  // wait_readable() does not know of that
  bool has_frame() { return reader_.has_frame(); }                  // or has ended: receive() does not wait
  void shut_down();                                                 // any thread: wakes the receiver and all senders
  void close();                                                     // receiving thread only

 private:
  bool has_room_for(std::size_t bytes) const;
  Status send_in_turn(FrameType type, std::uint64_t request_id, ByteView body, Deadline deadline, bool* broken);
  Status acquire_turn(Deadline deadline);
  void release_turn();

  std::mutex mutex_;
  std::condition_variable turn_;
  bool sending_ = false;  // guarded by mutex_: whoever set it may send without holding mutex_
  bool closed_ = false;   // guarded by mutex_
  Channel channel_;       // closed only with mutex_ held and nobody sending
  FrameReader reader_{channel_};
};

}  // namespace kvferry
