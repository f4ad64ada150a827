// Keeps many requests of one queue under way: each part is moved as a whole, short and interrupted requests go on by
// themselves, and its handler hears of each once. Used by one thread; while a pump lives its queue has no other user.
//
// Whatever happens, the kernel is done with all memory when finish() returns: at the deadline what is under way is
// cancelled and awaited.
#pragma once

#include <cstdint>
#include <vector>

#include "io/bounce_buffers.h"
#include "io/io_queue.h"
#include "kvferry/status.h"

namespace kvferry {

struct IoPart {
  IoRequest::Kind kind = IoRequest::Kind::kRead;
  int fd = -1;
  std::byte* data = nullptr;
  std::uint32_t length = 0;
  std::uint64_t offset = 0;
  std::uint32_t bounce = BounceBuffers::kNone;   // given back once the handler has returned
  std::uint64_t item = 0, first = 0, count = 0;  // the handler's
};

class IoPartHandler {
 public:
  // kOutOfRange: the file ends within the part. Else the code of the errno, or kDeadlineExceeded.
  virtual void part_ended(const IoPart& part, const Status& status) = 0;

 protected:
  ~IoPartHandler() = default;
};

class RequestPump {
 public:
  RequestPump(IoQueue& queue, BounceBuffers& bounce, Deadline deadline, IoPartHandler& handler);
  ~RequestPump() { finish(); }
  RequestPump(const RequestPump&) = delete;
  RequestPump& operator=(const RequestPump&) = delete;

  void start(const IoPart& part);   // waits while as many are under way as the queue takes
  void begin() { queue_.begin(); }  // what was started is under way while the caller does something else
  std::uint32_t take_bounce();      // waits for one; kNone: no memory for any
  std::byte* bounce(std::uint32_t index) const { return bounce_.at(index); }
  void finish();

 private:
  struct Slot {
    IoPart part;
    std::uint32_t moved = 0;
  };
  void collect();
  void request(std::uint32_t slot);
  void settle(std::uint32_t slot, std::int64_t value);
  bool goes_on(Slot& slot, std::int64_t value) const;
  Status outcome(const Slot& slot, std::int64_t value) const;

  IoQueue& queue_;
  BounceBuffers& bounce_;
  const Deadline deadline_;
  IoPartHandler& handler_;
  bool stopped_ = false;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::vector<IoResult> done_;
};

}  // namespace kvferry
