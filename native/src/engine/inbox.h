// Control messages that arrived and wait for the application. Bounded, and fairly: when all room is taken, whoever has
// more than an equal share of it waiting is refused, and nobody else. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "kvferry/engine.h"
#include "kvferry/status.h"

namespace kvferry {

class Inbox {
 public:
  static constexpr std::size_t kMaxMessages = 65536;
  static constexpr std::size_t kMaxBytes = 64u << 20;

  // kResourceExhausted: its sender has too much waiting; the message was not taken.
  Status push(Message message);
  std::optional<Message> pop(milliseconds timeout);
  void close();  // wakes all pop(); what is queued can still be taken

 private:
  struct Backlog {  // of one sender
    std::size_t messages = 0;
    std::size_t bytes = 0;
  };
  Status refusal_locked(const Backlog& sender) const;
  bool has_room_locked(const Backlog& sender, std::size_t body_bytes) const;

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Message> queue_;                  // all below guarded by mutex_
  std::map<std::uint64_t, Backlog> backlogs_;  // by peer; only of those that have messages waiting
  std::size_t bytes_ = 0;
  bool closed_ = false;
};

}  // namespace kvferry
