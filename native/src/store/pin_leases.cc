#include "store/pin_leases.h"

namespace kvferry::store {

PinId PinLeases::add(Session session, std::uint64_t pin_word, Deadline end) {
  ++counts_[pin_word];
  leases_.emplace(++last_, Lease{session, pin_word, end});
  return last_;
}

bool PinLeases::remove(Session session, PinId pin) {
  const auto lease = leases_.find(pin);
  if (lease == leases_.end() || lease->second.session != session) return false;
  drop(lease->second.pin_word);
  leases_.erase(lease);
  return true;
}

void PinLeases::remove_session(Session session) {
  std::erase_if(leases_, [&](const auto& entry) {
    if (entry.second.session != session) return false;
    drop(entry.second.pin_word);
    return true;
  });
}

std::uint64_t PinLeases::remove_ended(Clock::time_point now) {
  return std::erase_if(leases_, [&](const auto& entry) {
    if (entry.second.end > now) return false;
    drop(entry.second.pin_word);
    return true;
  });
}

void PinLeases::drop(std::uint64_t pin_word) {
  const auto count = counts_.find(pin_word);
  if (count != counts_.end() && --count->second == 0) counts_.erase(count);
}

void PinLeases::collect(std::vector<std::uint64_t>& pinned) const {
  for (const auto& [word, count] : counts_) pinned.push_back(word);
}

}  // namespace kvferry::store
