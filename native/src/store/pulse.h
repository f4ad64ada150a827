// Whether this node may speak for what it holds. A node that stands still (SIGSTOP, a paused machine, no processor for
// long) may be taken for dead meanwhile, and what it holds removed without it. So it notes that it runs, several times
// within the time after which others take it for dead. Whoever is about to say that something is here looks afterwards
// how long ago that was: what was looked up before a pause is never told after it. From then on the node catches up:
// every member must have confirmed, after the pause, that it counts on this node and has told it all.
// The same when it is given up although it runs. Clients of this host, who read without asking, find the same in the
// header of the index. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>

#include "base/deadline.h"
#include "engine/thread_group.h"

namespace kvferry::store {

class Pulse {
 public:
  struct Pause {
    std::uint64_t number = 0;
    Clock::time_point noticed{};         // when it was over
    std::chrono::milliseconds length{};  // 0: there was none, see distrust()
  };

  // A pause that is shorter than three quarters of `suspect_after` counts as none.
  explicit Pulse(std::chrono::milliseconds suspect_after);
  ~Pulse() { close(); }
  // `index`: shared with clients, there until close(). `stood_still`, without locks, whenever a pause was noticed.
  Status start(std::span<std::byte> index, std::function<void()> stood_still);
  void close();

  // No other node has a say in what is here: then a pause is of no account, and clients read whatever happens.
  void set_alone(bool alone);
  bool vouches() const;
  bool await(Deadline deadline);  // until it vouches
  // Since a pause after which it has not caught up yet.
  std::optional<Pause> pause() const;
  void caught_up(const Pause& pause);  // if there was none since
  void distrust();                     // as after a pause: another node has given this one up although it runs

 private:
  void run();
  void beat_locked();
  void note_pause_locked(std::chrono::milliseconds length);
  void show_locked();

  const std::uint64_t longest_ms_;
  const std::chrono::milliseconds period_;
  std::atomic<bool> alone_{true}, behind_{false};
  std::atomic<std::uint64_t> good_until_ms_{0};  // unless it beats again
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<std::uint64_t>* shown_ = nullptr;  // trusted_until of the index; guarded by mutex_, as is what follows
  std::function<void()> stood_still_;
  Pause last_;
  bool closed_ = false;
  ThreadGroup threads_;  // last: joined first
};

}  // namespace kvferry::store
