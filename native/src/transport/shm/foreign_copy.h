// Batches of copies between our memory and that of another process, done by the kernel. Used by one thread.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvferry/status.h"
#include "kvferry/types.h"

namespace kvferry {

class ForeignCopy {
 public:
  // One call costs about 2 us, however many runs it has.
  static constexpr std::size_t kBatchRuns = 128;
  static constexpr std::uint64_t kBatchBytes = 8u << 20;  // so that a cancelled transfer stops soon

  explicit ForeignCopy(pid_t pid) : pid_(pid) {}

  bool full() const { return local_.size() >= kBatchRuns || bytes_ >= kBatchBytes; }
  bool empty() const { return local_.empty(); }
  // `tag` comes back in `failed` if the run could not be copied.
  void add(std::byte* local, std::uint64_t remote_address, std::uint64_t length, std::size_t tag);
  // Copies all runs added since the last flush. OK: done, except the runs in `failed` (their memory is not mapped
  // there). kPeerLost (no such process), kUnavailable (the kernel forbids it), kResourceExhausted: `failed` has all not
  // copied.
  Status flush(Op op, std::vector<std::size_t>* failed);
  void drop(std::vector<std::size_t>* failed);  // instead of flush(): all are in `failed`

  // Eight bytes at `address` of the process. As flush(); kNotFound if nothing is mapped there.
  Result<std::uint64_t> peek(std::uint64_t address) const;

 private:
  Status error_of(int error) const;
  void reset();

  const pid_t pid_;
  std::vector<iovec> local_, remote_;  // parallel
  std::vector<std::size_t> tags_;      // parallel
  std::uint64_t bytes_ = 0;
};

}  // namespace kvferry
