#include "base/fork_count.h"

#include <pthread.h>

#include <atomic>

namespace kvferry {
namespace {

std::atomic<std::uint64_t> forks{0};

bool watch_forks() {
  return pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); }) == 0;
}

}  // namespace

std::uint64_t fork_count() {
  static const bool watched = watch_forks();
  (void)watched;  // fails only without memory for one entry; then a child is not told apart
  return forks.load(std::memory_order_relaxed);
}

}  // namespace kvferry
