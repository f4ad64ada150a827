// Native log lines on their way to Python's logging.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "kvferry/types.h"

namespace kvferry::python {

// A native thread only appends here and never waits for the interpreter, so no lock it holds can meet the
// interpreter lock. Full: the newest lines are dropped and counted. Thread-safe.
class LogQueue {
 public:
  using Line = std::pair<int, std::string>;

  explicit LogQueue(std::size_t capacity) : capacity_(capacity) {}
  void push(LogLevel level, std::string_view line);
  // All lines, as soon as there is one; empty after `timeout` or close(). Reports dropped lines as a line of its own.
  std::vector<Line> drain(milliseconds timeout);
  void close();

 private:
  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Line> lines_;
  std::uint64_t dropped_ = 0;
  bool closed_ = false;
};

}  // namespace kvferry::python
