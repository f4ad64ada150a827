// Wrong bytes that were found on the disk: counted, and told in the log. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "kvferry/status.h"
#include "kvferry/types.h"

namespace kvferry::store::log {

class Damage {
 public:
  static constexpr milliseconds kQuiet{10000};  // between two lines: a bad disk has thousands of bad records

  void found(const Status& what);  // which file, and where in it
  std::uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> count_{0};
  std::mutex mutex_;
  Clock::time_point next_line_{};  // guarded by mutex_
  std::uint64_t told_ = 0;         // guarded by mutex_
};

}  // namespace kvferry::store::log
