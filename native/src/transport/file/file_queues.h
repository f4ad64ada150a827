// The request queues of one engine, for what concerns all: what to forget, and how they work. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "io/io_queue.h"
#include "kvferry/types.h"
#include "transport/file/open_file.h"

namespace kvferry {

std::uint64_t memory_id(RegionKey key);  // what a region's memory is called in IoRequest::memory

class FileQueues {
 public:
  // `use_uring` false: plain system calls even where io_uring is possible.
  explicit FileQueues(bool use_uring) : use_uring_(use_uring) {}

  std::shared_ptr<IoQueue> create();  // io_uring where possible, else plain system calls
  std::string note();                 // how requests are made here, and why not better
  void forget_memory(RegionKey key);  // of a region that nobody uses any more
  void forget_file(const OpenFile& file);

 private:
  std::vector<std::shared_ptr<IoQueue>> alive();

  const bool use_uring_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<IoQueue>> queues_;  // guarded by mutex_
};

}  // namespace kvferry
