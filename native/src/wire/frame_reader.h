// Receives frames with few system calls: a small frame comes with its body and payload in one, and a large payload goes
// straight into place, together with the beginning of what follows it. Used by one thread at a time.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <vector>

#include "base/bytes.h"
#include "base/socket.h"
#include "wire/channel.h"

namespace kvferry {

class FrameReader {
 public:
  explicit FrameReader(Channel& channel) : channel_(channel), buffer_(kBufferBytes) {}  // it outlives the reader

  struct View {
    FrameHeader header;
    ByteView body;  // checked; valid until the next call
  };
  Result<View> next(const Wait& wait);
  // As next(), but of a control connection: as long as frames may be, and the caller's own.
  Result<Frame> next_of_any_length(const Wait& wait);
  // Without waiting: the whole of such a frame is there, or next_of_any_length() has an error to tell.
  bool has_frame();
  // The raw bytes after a frame. `segments` are used up.
  Status payload(std::vector<iovec>* segments, const Wait& wait);
  bool has_read_ahead() const { return begin_ != end_; }

 private:
  // The longest frame of a data connection fits. What is read ahead of a payload is copied once more, so it is little.
  static constexpr std::size_t kBufferBytes = 16u << 10;

  Status need(std::size_t bytes, const Wait& wait);
  ByteView buffered() const { return ByteView(buffer_).subspan(begin_, end_ - begin_); }

  Channel& channel_;
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // what was read ahead
};

}  // namespace kvferry
