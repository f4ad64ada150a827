// Requests by io_uring: many under way, one system call for what starts and what ends. Files and memory that come again
// are registered, which spares the kernel looking them up and pinning their pages for each request.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/io_queue.h"
#include "io/ring.h"
#include "kvferry/status.h"

namespace kvferry {

class UringQueue final : public IoQueue {
 public:
  static Result<std::unique_ptr<IoQueue>> create();  // kUnsupported with the reason

  explicit UringQueue(Ring ring);
  std::size_t depth() const override { return depth_; }
  std::string note() const override;
  void start(const IoRequest& request) override;
  void begin() override;
  void wait(Deadline until, std::vector<IoResult>* done) override;
  void cancel_all() override;
  void remember_memory(std::uint64_t id, std::byte* data, std::uint64_t length) override;
  void forget_memory(std::uint64_t id) override;
  void forget_file(int fd) override;

 private:
  static constexpr std::int32_t kUnknown = -1, kRefused = -2;
  struct Memory {
    std::byte* data = nullptr;
    std::uint64_t length = 0;
    std::vector<std::int32_t> places;  // by chunk: its place in the table, kUnknown or kRefused
  };
  std::int32_t buffer_place_locked(const IoRequest& request);
  std::int32_t register_chunk_locked(const Memory& memory, std::size_t chunk);
  std::int32_t file_place_locked(int fd);
  void fill(uring::Sqe* entry, const IoRequest& request);

  Ring ring_;
  const std::size_t depth_;
  std::vector<bool> under_way_;  // by tag

  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<std::uint64_t, Memory> memories_;
  std::unordered_map<int, std::int32_t> files_;
  std::vector<std::uint32_t> free_buffers_, free_files_;
  std::string buffers_note_;  // why memory is not registered; empty: it is
};

}  // namespace kvferry
