// The request queues of one log. A call takes one for as long as it moves bytes, so that calls of several threads run
// side by side. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "io/bounce_buffers.h"
#include "io/request_pump.h"
#include "store/log/disk.h"

namespace kvferry::store::log {

class QueuePool {
  struct Station {
    std::shared_ptr<IoQueue> queue;
    BounceBuffers bounce;
    bool taken = false;
  };

 public:
  static constexpr std::size_t kMostQueues = 8;

  class Lease {
   public:
    Lease() = default;
    Lease(QueuePool* pool, Station* station) : pool_(pool), station_(station) {}
    Lease(Lease&& other) noexcept : pool_(other.pool_), station_(std::exchange(other.station_, nullptr)) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (station_ != nullptr) pool_->give_back(station_);
    }
    IoQueue& queue() const { return *station_->queue; }
    BounceBuffers& bounce() const { return station_->bounce; }

   private:
    QueuePool* pool_ = nullptr;
    Station* station_ = nullptr;
  };

  explicit QueuePool(std::shared_ptr<Disk> disk) : disk_(std::move(disk)) {}
  Result<Lease> take(Deadline deadline);  // kDeadlineExceeded
  void forget_file(int fd);               // before it is closed, when nobody uses it any more
  std::string note();
  // When the disk last ended a write, or a sync, well.
  void note_progress() { progress_ = Clock::now(); }
  Clock::time_point progress() const { return progress_; }

 private:
  void give_back(Station* station);

  const std::shared_ptr<Disk> disk_;
  std::atomic<Clock::time_point> progress_{Clock::time_point{}};
  std::mutex mutex_;
  std::condition_variable free_;
  std::vector<std::unique_ptr<Station>> stations_;  // guarded by mutex_
};

}  // namespace kvferry::store::log
