// One io_uring by raw system calls. Thread-compatible, except update_*(), which any thread may call.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/unique_fd.h"
#include "io/uring_abi.h"
#include "kvferry/status.h"
#include "kvferry/types.h"

namespace kvferry {

class Ring {
 public:
  // kUnsupported with the reason: forbidden here (seccomp, sysctl), not in this kernel, or too old.
  static Result<Ring> create(std::uint32_t entries);
  Ring(Ring&& other) noexcept;
  Ring& operator=(Ring&&) = delete;
  ~Ring();

  std::uint32_t entries() const { return entries_; }
  // The next free submission entry, zeroed; nullptr if all are taken: enter() makes room.
  uring::Sqe* next();
  // Hands new entries to the kernel and waits until a completion is there, or `until`. 0, or a negative errno.
  int enter(Deadline until);
  bool pop(uring::Cqe* out);

  // Empty tables first, then single places. A negative errno if refused.
  int register_buffer_table(std::uint32_t places);
  int register_file_table(std::uint32_t places);
  int update_buffer(std::uint32_t place, const iovec& memory) const;  // {nullptr, 0}: none any more
  int update_file(std::uint32_t place, int fd) const;                 // -1: none any more

 private:
  Ring(UniqueFd fd, std::uint32_t entries) : fd_(std::move(fd)), entries_(entries) {}
  Status map(const uring::Params& params);
  bool has_completion() const;

  UniqueFd fd_;
  const std::uint32_t entries_;
  void* rings_ = nullptr;
  std::size_t rings_length_ = 0;
  uring::Sqe* sqes_ = nullptr;
  std::uint32_t* sq_head_ = nullptr;
  std::uint32_t* sq_tail_ = nullptr;
  std::uint32_t sq_mask_ = 0;
  std::uint32_t* cq_head_ = nullptr;
  std::uint32_t* cq_tail_ = nullptr;
  std::uint32_t cq_mask_ = 0;
  uring::Cqe* cqes_ = nullptr;
};

}  // namespace kvferry
