// What the file rail and the store's log ask of the kernel: some reads, writes and syncs under way at once. The seam
// between what is to be done and how: io_uring, plain system calls, or a test that fails on purpose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kvferry/types.h"

namespace kvferry {

inline constexpr std::uint64_t kBounceBytes = 256u << 10;   // one aligned buffer
inline constexpr std::uint64_t kRequestBytes = 256u << 10;  // from 128 KiB on disks reach full speed; see docs/files.md

struct IoRequest {
  enum class Kind : std::uint8_t { kRead, kWrite, kSyncData, kSyncFull };
  Kind kind = Kind::kRead;
  int fd = -1;
  std::byte* data = nullptr;
  std::uint32_t length = 0;
  std::uint64_t offset = 0;
  std::uint32_t tag = 0;     // comes back with the result; no two under way have the same
  std::uint64_t memory = 0;  // what remember_memory() was told of `data`; 0: nothing
};

struct IoResult {
  std::uint32_t tag = 0;
  std::int64_t value = 0;  // bytes moved, perhaps fewer than wanted, or a negative errno
};

// Used by one thread at a time; the forget_ methods by any.
class IoQueue {
 public:
  virtual ~IoQueue() = default;
  virtual std::size_t depth() const = 0;             // how many requests may be under way
  virtual std::string note() const = 0;              // how it works, and what of it is not possible here
  virtual void start(const IoRequest& request) = 0;  // at the latest the next wait() begins it
  // What was started goes to the disk now, where the queue can do that without waiting.
  virtual void begin() {}
  // Appends the results of what has ended; returns when there is at least one, or at `until`.
  virtual void wait(Deadline until, std::vector<IoResult>* done) = 0;
  virtual void cancel_all() = 0;  // results still come for all, those that could be stopped with -ECANCELED

  // Memory that many requests will name: may be made known to the kernel once and for all. It stays mapped until
  // forget_memory(). No request that names it, or the file, is under way when it is forgotten.
  virtual void remember_memory(std::uint64_t id, std::byte* data, std::uint64_t length) = 0;
  virtual void forget_memory(std::uint64_t id) = 0;
  virtual void forget_file(int fd) = 0;  // before it is closed
};

}  // namespace kvferry
