// Times cross the boundary as seconds in a double.
#pragma once

#include <chrono>
#include <cmath>
#include <string>

#include "errors.h"
#include "kvferry/types.h"

namespace kvferry::python {

inline constexpr double kMaxSeconds = 1e6;  // about 11 days; longer waits are cut to it

// Rounded up to a millisecond. Throws StatusError (kInvalidArgument) for negative times and NaN.
inline milliseconds to_milliseconds(double seconds) {
  if (!(seconds >= 0)) {
    throw StatusError{{Code::kInvalidArgument, "a time of " + std::to_string(seconds) + " s is not possible"}};
  }
  return milliseconds(static_cast<milliseconds::rep>(std::ceil(std::fmin(seconds, kMaxSeconds) * 1e3)));
}

inline double to_seconds(milliseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace kvferry::python
