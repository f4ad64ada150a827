// Reads and writes by plain system calls, one after the other in the calling thread: where io_uring is not possible.
#pragma once

#include <deque>
#include <string>
#include <utility>

#include "io/io_queue.h"

namespace kvferry {

class PlainQueue final : public IoQueue {
 public:
  explicit PlainQueue(std::string why_not_better) : why_(std::move(why_not_better)) {}

  std::size_t depth() const override { return 2; }
  std::string note() const override { return "pread and pwrite: " + why_; }
  void start(const IoRequest& request) override { waiting_.push_back(request); }
  void wait(Deadline until, std::vector<IoResult>* done) override;
  void cancel_all() override { cancelled_ = !waiting_.empty(); }
  void remember_memory(std::uint64_t, std::byte*, std::uint64_t) override {}
  void forget_memory(std::uint64_t) override {}
  void forget_file(int) override {}

 private:
  const std::string why_;
  std::deque<IoRequest> waiting_;
  bool cancelled_ = false;
};

}  // namespace kvferry
