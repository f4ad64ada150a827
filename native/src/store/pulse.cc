#include "store/pulse.h"

#include <algorithm>
#include <utility>

#include "store/index_layout.h"

namespace kvferry::store {
namespace {

constexpr std::uint64_t kNotNow = 1;  // a time long past

}  // namespace

Pulse::Pulse(std::chrono::milliseconds suspect_after)
    : longest_ms_(std::max<std::uint64_t>(static_cast<std::uint64_t>(suspect_after.count()) * 3 / 4, 1)),
      period_(std::max(suspect_after / 16, std::chrono::milliseconds(1))) {}

Status Pulse::start(std::span<std::byte> index, std::function<void()> stood_still) {
  {
    const std::lock_guard lock(mutex_);
    shown_ = &reinterpret_cast<IndexHeader*>(index.data())->trusted_until;
    stood_still_ = std::move(stood_still);
    good_until_ms_ = monotonic_ms() + longest_ms_;
  }
  return threads_.spawn("kvs-pulse", [this] { run(); });
}

bool Pulse::vouches() const {
  if (alone_.load(std::memory_order_acquire)) return true;
  return !behind_.load(std::memory_order_acquire) && monotonic_ms() < good_until_ms_.load(std::memory_order_acquire);
}

void Pulse::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    if (shown_ != nullptr) shown_->store(kNotNow, std::memory_order_release);  // others go on without what is there
    shown_ = nullptr;                                                          // the index goes
  }
  changed_.notify_all();
  threads_.join_all();
}

void Pulse::run() {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    const std::uint64_t before = last_.number;
    beat_locked();
    if (last_.number != before) {
      lock.unlock();
      stood_still_();
      lock.lock();
      continue;
    }
    (void)changed_.wait_for(lock, period_, [&] { return closed_; });
  }
}

// A pause is noted before the new time is: nobody sees a time that is good and not that there was a pause.
void Pulse::beat_locked() {
  const std::uint64_t now_ms = monotonic_ms();
  const std::uint64_t good_until = good_until_ms_.load(std::memory_order_relaxed);
  if (now_ms >= good_until) {
    note_pause_locked(std::chrono::milliseconds(now_ms - good_until + longest_ms_));
  }
  good_until_ms_.store(now_ms + longest_ms_, std::memory_order_release);
  show_locked();
}

void Pulse::note_pause_locked(std::chrono::milliseconds length) {
  last_ = {last_.number + 1, Clock::now(), length};
  behind_.store(true, std::memory_order_release);
}

void Pulse::distrust() {
  {
    const std::lock_guard lock(mutex_);
    note_pause_locked(std::chrono::milliseconds(0));
    show_locked();
  }
  stood_still_();
}

void Pulse::show_locked() {
  if (shown_ == nullptr) return;
  const std::uint64_t until = alone_ ? 0 : behind_ ? kNotNow : good_until_ms_.load(std::memory_order_relaxed);
  shown_->store(until, std::memory_order_release);
}

void Pulse::set_alone(bool alone) {
  {
    const std::lock_guard lock(mutex_);
    alone_.store(alone, std::memory_order_release);
    show_locked();
  }
  changed_.notify_all();
}

bool Pulse::await(Deadline deadline) {
  if (vouches()) return true;
  std::unique_lock lock(mutex_);
  const auto again = [this] { return closed_ || vouches(); };
  while (!again() && !expired(deadline)) {
    (void)changed_.wait_until(lock, sooner(deadline, deadline_in(period_)), again);
  }
  return vouches();
}

std::optional<Pulse::Pause> Pulse::pause() const {
  if (!behind_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return last_;
}

void Pulse::caught_up(const Pause& pause) {
  {
    const std::lock_guard lock(mutex_);
    if (pause.number != last_.number) return;
    behind_.store(false, std::memory_order_release);
    show_locked();
  }
  changed_.notify_all();
}

}  // namespace kvferry::store
