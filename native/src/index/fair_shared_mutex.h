// A reader-writer lock that readers cannot keep a writer out of: while one waits, new readers queue behind it.
#pragma once

#include <mutex>
#include <shared_mutex>

namespace kvferry::index {

// Meets the requirements of SharedMutex for std::unique_lock and std::shared_lock.
class FairSharedMutex {
 public:
  void lock() {
    const std::lock_guard gate(gate_);
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }
  void lock_shared() {
    const std::lock_guard gate(gate_);
    mutex_.lock_shared();
  }
  void unlock_shared() { mutex_.unlock_shared(); }

 private:
  std::mutex gate_;
  std::shared_mutex mutex_;
};

}  // namespace kvferry::index
