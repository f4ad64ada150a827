#include "store/log/damage.h"

#include "base/log.h"

namespace kvferry::store::log {

void Damage::found(const Status& what) {
  const std::uint64_t count = count_.fetch_add(1, std::memory_order_relaxed) + 1;
  std::uint64_t untold = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    if (now < next_line_) return;
    next_line_ = now + kQuiet;
    untold = count - told_ - 1;
    told_ = count;
  }
  log_event(LogLevel::kWarning, "ssd_corrupt",
            {{"what", what},
             {"since_last_line", untold},
             {"next",
              "the object is dropped: reads find another copy, or that it is absent; check the disk (dmesg, smartctl) "
              "if this goes on"}});
}

}  // namespace kvferry::store::log
