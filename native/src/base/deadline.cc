#include "base/deadline.h"

#include <algorithm>
#include <limits>

namespace kvferry {

Deadline deadline_after(Clock::time_point start, milliseconds timeout) {
  return start + std::clamp(timeout, milliseconds(0), kLongestWait);
}

Deadline deadline_in(milliseconds timeout) { return deadline_after(Clock::now(), timeout); }

milliseconds remaining(Deadline deadline) {
  const Deadline now = Clock::now();
  if (deadline <= now) return milliseconds(0);
  if (deadline > now + kLongestWait)
    return kLongestWait;  // Deadline::max() included: the difference could not overflow
  return std::chrono::ceil<milliseconds>(deadline - now);
}

int poll_timeout_ms(Deadline deadline) {
  const auto left = remaining(deadline).count();
  return static_cast<int>(std::min<decltype(left)>(left, std::numeric_limits<int>::max()));
}

}  // namespace kvferry
