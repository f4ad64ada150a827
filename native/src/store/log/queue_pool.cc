#include "store/log/queue_pool.h"

#include "base/deadline.h"

namespace kvferry::store::log {

Result<QueuePool::Lease> QueuePool::take(Deadline deadline) {
  std::unique_lock lock(mutex_);
  for (;;) {
    for (const auto& station : stations_) {
      if (station->taken) continue;
      station->taken = true;
      return Lease(this, station.get());
    }
    if (stations_.size() < kMostQueues) {
      auto station = std::make_unique<Station>();
      station->queue = disk_->make_queue();
      stations_.push_back(std::move(station));
      continue;
    }
    if (free_.wait_until(lock, deadline) == std::cv_status::timeout && expired(deadline)) {
      return {Code::kDeadlineExceeded, "all request queues of the log stayed in use for the time allowed"};
    }
  }
}

void QueuePool::give_back(Station* station) {
  {
    const std::lock_guard lock(mutex_);
    station->taken = false;
  }
  free_.notify_one();
}

void QueuePool::forget_file(int fd) {
  const std::lock_guard lock(mutex_);
  for (const auto& station : stations_) station->queue->forget_file(fd);
}

std::string QueuePool::note() {
  const std::lock_guard lock(mutex_);
  return stations_.empty() ? disk_->make_queue()->note() : stations_.front()->queue->note();
}

}  // namespace kvferry::store::log
