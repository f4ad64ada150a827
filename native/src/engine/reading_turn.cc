#include "engine/reading_turn.h"

namespace kvferry {
namespace {

// What comes of the peer's own accord in that time waits for so long; it is nothing that is urgent.
constexpr milliseconds kLinger{20};

}  // namespace

bool ReadingTurn::enter() {
  const std::lock_guard lock(mutex_);
  ++waiting_;
  if (reading_ || closed_ || !end_.ok()) return false;
  reading_ = true;
  return true;
}

void ReadingTurn::stop_reading(bool served, const Status& end) {
  bool wanted = false;
  {
    const std::lock_guard lock(mutex_);
    reading_ = false;
    last_read_ = Clock::now();
    if (!end.ok()) end_ = end;
    wanted = waiting_ > (served ? 1 : 0) || !end.ok() || closed_;
  }
  if (wanted) changed_.notify_all();
}

void ReadingTurn::leave() {
  const std::lock_guard lock(mutex_);
  --waiting_;
}

bool ReadingTurn::rest() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!end_.ok()) return false;
    const Clock::time_point now = Clock::now();
    const bool lingers = waiting_ == 0 && now < last_read_ + kLinger;
    if (!reading_ && !lingers) return true;
    // Who leaves says so only if somebody else waits: most come again at once.
    changed_.wait_until(lock, now + kLinger, [&] { return !end_.ok() || (!reading_ && waiting_ > 0); });
  }
}

bool ReadingTurn::take() {
  const std::lock_guard lock(mutex_);
  if (reading_) return false;
  reading_ = true;
  return true;
}

void ReadingTurn::give() {
  const std::lock_guard lock(mutex_);
  reading_ = false;
}

void ReadingTurn::close() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  changed_.wait(lock, [&] { return !reading_; });  // bounded: the socket is shut down
}

Status ReadingTurn::end() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

}  // namespace kvferry
