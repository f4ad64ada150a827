// Deadlines are steady-clock time points. All helpers saturate, so "a very long time" is safe to pass.
#pragma once

#include "kvferry/types.h"

namespace kvferry {

inline constexpr milliseconds kLongestWait = std::chrono::hours(24 * 365);

// Now plus timeout; negative counts as 0, more than kLongestWait as kLongestWait.
Deadline deadline_in(milliseconds timeout);
Deadline deadline_after(Clock::time_point start, milliseconds timeout);  // the same from another time on
inline bool expired(Deadline deadline) { return Clock::now() >= deadline; }
// Time left, 0 if none; rounded up so that a loop around poll(2) never spins in the last millisecond.
milliseconds remaining(Deadline deadline);
int poll_timeout_ms(Deadline deadline);  // remaining, clamped to int
inline Deadline sooner(Deadline a, Deadline b) { return a < b ? a : b; }

}  // namespace kvferry
