#include "io/request_pump.h"

#include <cerrno>
#include <string>

#include "base/deadline.h"
#include "io/direct_access.h"

namespace kvferry {
namespace {

constexpr milliseconds kLookAround{10};  // how soon a deadline is noticed
constexpr std::uint32_t kUnit = 4096;    // direct access goes on at whole units only

bool is_sync(const IoPart& part) {
  return part.kind == IoRequest::Kind::kSyncData || part.kind == IoRequest::Kind::kSyncFull;
}

}  // namespace

RequestPump::RequestPump(IoQueue& queue, BounceBuffers& bounce, Deadline deadline, IoPartHandler& handler)
    : queue_(queue), bounce_(bounce), deadline_(deadline), handler_(handler), slots_(queue.depth()) {
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) free_.push_back(slot);
}

void RequestPump::start(const IoPart& part) {
  while (free_.empty()) collect();
  if (!stopped_ && expired(deadline_)) {
    stopped_ = true;
    queue_.cancel_all();
  }
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  slots_[slot] = {part, 0};
  if (stopped_) return settle(slot, -ECANCELED);
  request(slot);
}

std::uint32_t RequestPump::take_bounce() {
  if (!bounce_.prepare()) return BounceBuffers::kNone;
  for (;;) {
    const std::uint32_t index = bounce_.take();
    if (index != BounceBuffers::kNone || free_.size() == slots_.size()) return index;
    collect();
  }
}

void RequestPump::finish() {
  while (free_.size() < slots_.size()) collect();
}

void RequestPump::request(std::uint32_t slot) {
  const Slot& s = slots_[slot];
  queue_.start({s.part.kind, s.part.fd, s.part.data + s.moved, s.part.length - s.moved, s.part.offset + s.moved, slot});
}

void RequestPump::collect() {
  if (!stopped_ && expired(deadline_)) {
    stopped_ = true;
    queue_.cancel_all();
  }
  std::vector<IoResult> done;
  done.swap(done_);
  done.clear();
  queue_.wait(stopped_ ? deadline_in(kLookAround) : sooner(deadline_, deadline_in(kLookAround)), &done);
  for (const IoResult& result : done) settle(result.tag, result.value);
  done_.swap(done);
}

void RequestPump::settle(std::uint32_t slot, std::int64_t value) {
  Slot& s = slots_[slot];
  if (!stopped_ && goes_on(s, value)) return request(slot);
  handler_.part_ended(s.part, outcome(s, value));
  bounce_.give_back(s.part.bounce);
  free_.push_back(slot);
}

bool RequestPump::goes_on(Slot& slot, std::int64_t value) const {
  if (value == -EINTR || value == -EAGAIN) return true;
  if (value <= 0 || is_sync(slot.part)) return false;
  slot.moved += static_cast<std::uint32_t>(value);
  if (slot.moved >= slot.part.length) return false;
  const std::uint32_t odd = slot.moved % kUnit;
  slot.moved -= odd;
  return value > odd;
}

Status RequestPump::outcome(const Slot& slot, std::int64_t value) const {
  const IoPart& part = slot.part;
  if (value >= 0 && (is_sync(part) || slot.moved >= part.length)) return {};
  const bool read = part.kind == IoRequest::Kind::kRead;
  std::string what = "syncing";
  if (!is_sync(part)) {
    what = (read ? "reading " : "writing ") + std::to_string(part.length) + " bytes at offset " +
           std::to_string(part.offset);
  }
  if (stopped_ && (value >= 0 || value == -ECANCELED || value == -EINTR)) {
    return {Code::kDeadlineExceeded, what + ": the time allowed ran out"};
  }
  const int error = static_cast<int>(-value);
  if (value < 0) return errno_status(file_error_code(error), what, error);
  const std::string end = std::to_string(part.offset + slot.moved);
  if (read) return {Code::kOutOfRange, what + ": the file ends at " + end};
  return {Code::kUnavailable, what + ": the kernel took nothing from offset " + end + " on and gave no reason"};
}

}  // namespace kvferry
