// Control messages that arrived and wait for the application. Bounded; thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>

#include "kvferry/engine.h"

namespace kvferry {

class Inbox {
 public:
  static constexpr std::size_t kMaxMessages = 65536;
  static constexpr std::size_t kMaxBytes = 64u << 20;

  bool push(Message message);  // false: full, the message was not taken
  std::optional<Message> pop(milliseconds timeout);
  void close();  // wakes all pop(); what is queued can still be taken

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Message> queue_;  // all below guarded by mutex_
  std::size_t bytes_ = 0;
  bool closed_ = false;
};

}  // namespace kvferry
