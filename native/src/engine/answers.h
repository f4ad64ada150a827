// Answers to a peer that the control thread must not wait for: while it waits to send, it does not receive, and if both
// ends do that, neither gets on. Asked-for answers are kept here and sent by a thread that lives as long as there are
// any. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

#include "wire/frame.h"

namespace kvferry {

class Answers {
 public:
  struct Answer {
    FrameType type = FrameType::kPong;
    std::uint64_t request_id = 0;
  };
  enum class Added { kStartSender, kYes, kTooMany };

  // kStartSender: no sender is at work, the caller starts one. kTooMany: the peer asks and does not read.
  Added add(Answer answer);
  std::optional<Answer> next();  // for the sender; nullopt: none is left, and it ends
  void abandon();                // the sender could not be started

 private:
  static constexpr std::size_t kMaxWaiting = 1024;

  std::mutex mutex_;
  std::deque<Answer> waiting_;  // guarded by mutex_
  bool has_sender_ = false;     // guarded by mutex_
};

}  // namespace kvferry
