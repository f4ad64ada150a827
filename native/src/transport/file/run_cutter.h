// Cuts one run into requests that a file takes: whole units directly from or to the caller's memory where its alignment
// allows, through an aligned buffer of ours where it does not, and what is no whole unit through the page cache
// (writes) or with its surroundings (reads). A pure function of the geometry; used by one thread.
#pragma once

#include <cstdint>

#include "io/direct_access.h"
#include "io/io_queue.h"
#include "kvferry/types.h"

namespace kvferry {

struct FilePart {
  enum class How : std::uint8_t { kBuffered, kDirect, kBounced };
  How how = How::kBuffered;
  std::uint64_t begin = 0;      // in the run
  std::uint64_t length = 0;     // of the run's bytes
  std::uint64_t io_offset = 0;  // in the file: what the request covers, which is more than the run's bytes if bounced
  std::uint64_t io_length = 0;
};

class RunCutter {
 public:
  RunCutter() = default;
  RunCutter(const FileGeometry& geometry, Op op, const std::byte* memory, std::uint64_t offset, std::uint64_t length);

  bool done() const { return at_ == length_; }
  FilePart next();  // not if done()

 private:
  FilePart take(FilePart::How how, std::uint64_t length);
  FilePart take_with_surroundings(std::uint64_t length);

  FileGeometry geometry_;
  Op op_ = Op::kRead;
  std::uint64_t address_ = 0, offset_ = 0, length_ = 0, at_ = 0;
};

}  // namespace kvferry
