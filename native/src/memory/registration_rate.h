// How often each range of memory is registered. To register is to look at the mapping, advise the kernel and tell
// peers: done for every transfer, it costs more than the transfers (field case 3.11), and the user should hear of it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "kvferry/types.h"

namespace kvferry {

// Thread-compatible: RegionTable calls it under its lock.
class RegistrationRate {
 public:
  static constexpr std::uint32_t kMostPerWindow = 60;
  static constexpr std::chrono::seconds kWindow{60};
  // More different ones than these are not looked at within a window: their owner does not repeat itself.
  static constexpr std::size_t kMaxRanges = 4096;

  // Counts one more; how often it was in this window, if that is worth a warning now: at most one per window, whatever
  // the range.
  std::optional<std::uint32_t> count(std::uint64_t address, std::uint64_t length, Clock::time_point now);

 private:
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t> times_;
  std::optional<Clock::time_point> window_began_;
  std::optional<Clock::time_point> warned_;
};

}  // namespace kvferry
