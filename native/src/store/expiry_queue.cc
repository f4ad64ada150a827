#include "store/expiry_queue.h"

#include <algorithm>

namespace kvferry::store {

void ExpiryQueue::add(std::uint32_t slot, std::uint64_t expires_ms, const Current& current) {
  if (heap_.size() >= sweep_at_) {
    std::erase_if(heap_, [&](const Entry& entry) { return !current(entry.second, entry.first); });
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    sweep_at_ = std::max<std::size_t>(1024, 2 * heap_.size());
  }
  heap_.emplace_back(expires_ms, slot);
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

void ExpiryQueue::take_due(std::uint64_t now_ms, const Current& current,
                           const std::function<void(std::uint32_t)>& due) {
  while (!heap_.empty() && heap_.front().first <= now_ms) {
    const auto [expires_ms, slot] = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
    if (current(slot, expires_ms)) due(slot);
  }
}

}  // namespace kvferry::store
