#include "memory/page_maker.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/log.h"
#include "kvferry/types.h"
#include "memory/address_range.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace kvferry {
namespace {

// Between two steps other threads of the process get at its address space, and a signal costs at most one step.
constexpr std::uint64_t kStepBytes = 16u << 20;
constexpr std::uint64_t kBytesPerThread = 128u << 20;  // for less another thread does not pay
constexpr std::uint64_t kMaxThreads = 8;
constexpr std::chrono::seconds kReportEvery{5};

template <typename Call>
int error_of(Call call) {
  int result = 0;
  do {
    result = call();
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

class PageMaker {
 public:
  PageMaker(const FreshMemory& memory, bool collapse) : memory_(memory), collapse_(collapse) {}

  void run(bool report) {
    Clock::time_point next_report = Clock::now() + kReportEvery;
    for (;;) {
      const std::uint64_t begin = next_.fetch_add(kStepBytes);
      if (begin >= memory_.length || error_.load() != 0) return;
      make(begin, std::min(kStepBytes, memory_.length - begin));
      if (!report || Clock::now() < next_report) continue;
      next_report = Clock::now() + kReportEvery;
      log_event(LogLevel::kInfo, "arena_progress", {{"bytes", begin}, {"of", memory_.length}});
    }
  }

  int error() const { return error_; }
  bool all_huge() const { return collapse_; }

 private:
  void make(std::uint64_t begin, std::uint64_t length) {
    if (collapse_.load() && !collapse(begin, length)) collapse_ = false;
    if (const int error = populate(begin, length); error != 0) error_ = error;
  }

  int allocate(std::uint64_t begin, std::uint64_t length) const {
    return error_of([&] { return ::fallocate(memory_.fd, 0, static_cast<off_t>(begin), static_cast<off_t>(length)); });
  }

  // Where the kernel finds one small page it makes a huge one around it, and clears only what was not there.
  bool collapse(std::uint64_t begin, std::uint64_t length) const {
    const std::uint64_t end = begin + length / kHugePageBytes * kHugePageBytes;
    for (std::uint64_t at = begin; at < end; at += kHugePageBytes) {
      if (allocate(at, 1) != 0) return false;
    }
    return end == begin || collapse_into_huge_pages(memory_.data + begin, end - begin);
  }

  int populate(std::uint64_t begin, std::uint64_t length) const {
    const int error = error_of([&] { return ::madvise(memory_.data + begin, length, MADV_POPULATE_WRITE); });
    if (error == EINVAL) return allocate(begin, length);  // Linux before 5.14; then each page is mapped at first use
    return error == EFAULT ? ENOMEM : error;              // "would have been SIGBUS": the file got no page
  }

  const FreshMemory& memory_;
  std::atomic<std::uint64_t> next_{0};
  std::atomic<bool> collapse_;  // as long as it works
  std::atomic<int> error_{0};
};

void run_in_parallel(PageMaker& maker, std::uint64_t threads) {
  std::vector<std::jthread> helpers;
  try {
    for (std::uint64_t i = 1; i < threads; ++i) helpers.emplace_back([&] { maker.run(false); });
  } catch (const std::system_error&) {  // no more threads: this one does it all
  }
  maker.run(true);
}

std::uint64_t count_from(const std::string& path) {
  std::uint64_t count = 0;
  std::ifstream(path) >> count;
  return count;
}

}  // namespace

std::uint64_t page_making_threads(std::uint64_t length) {
  const std::uint64_t cores = std::max(1u, std::thread::hardware_concurrency() / 2);
  return std::min({cores, kMaxThreads, length / kBytesPerThread + 1});
}

Result<std::uint64_t> make_pages(const FreshMemory& memory, bool huge_pages, std::uint64_t threads) {
  const bool collapse = huge_pages && memory.page_bytes < kHugePageBytes && memory.length >= kHugePageBytes;
  PageMaker maker(memory, collapse);
  run_in_parallel(maker, threads);
  if (maker.error() != 0) {
    return errno_status(Code::kResourceExhausted,
                        "cannot allocate " + std::to_string(memory.length) + " bytes of shared memory", maker.error());
  }
  return maker.all_huge() ? kHugePageBytes : memory.page_bytes;
}

std::uint64_t reserved_huge_bytes() {
  const std::string folder = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  const std::uint64_t free = count_from(folder + "free_hugepages");
  const std::uint64_t promised = count_from(folder + "resv_hugepages");
  return free > promised ? (free - promised) * kHugePageBytes : 0;
}

}  // namespace kvferry
