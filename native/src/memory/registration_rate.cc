#include "memory/registration_rate.h"

namespace kvferry {

std::optional<std::uint32_t> RegistrationRate::count(std::uint64_t address, std::uint64_t length,
                                                     Clock::time_point now) {
  if (!window_began_ || now - *window_began_ >= kWindow) {
    window_began_ = now;
    times_.clear();
  }
  const std::pair range(address, length);
  if (times_.size() >= kMaxRanges && times_.count(range) == 0) return std::nullopt;
  const std::uint32_t times = ++times_[range];
  if (times <= kMostPerWindow || (warned_ && now - *warned_ < kWindow)) return std::nullopt;
  warned_ = now;
  return times;
}

}  // namespace kvferry
