// Reads and writes whole units of one file of the log, in the calling thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "io/aligned_buffer.h"
#include "io/request_pump.h"
#include "store/log/queue_pool.h"

namespace kvferry::store::log {

class FileIo final : private IoPartHandler {
 public:
  FileIo(QueuePool& queues, Deadline deadline) : queues_(queues), deadline_(deadline) {}

  // `memory` is aligned and of whole units. The status names the path; kOutOfRange: the file ends before.
  Status read(const LogFile& file, std::uint64_t offset, std::span<std::byte> memory) {
    return run(IoRequest::Kind::kRead, file, offset, memory);
  }
  Status write(const LogFile& file, std::uint64_t offset, std::span<std::byte> memory) {
    return run(IoRequest::Kind::kWrite, file, offset, memory);
  }
  Status sync(const LogFile& file) { return run(IoRequest::Kind::kSyncData, file, 0, {}); }

 private:
  Status run(IoRequest::Kind kind, const LogFile& file, std::uint64_t offset, std::span<std::byte> memory);
  void part_ended(const IoPart& part, const Status& status) override;

  QueuePool& queues_;
  const Deadline deadline_;
  Status status_;
};

// A file read from front to back, in long pieces.
class Window {
 public:
  Window(QueuePool& queues, const LogFile& file, std::uint64_t file_bytes)
      : queues_(queues), file_(file), last_(file_bytes) {}
  // The bytes at [offset, offset + length), valid until the next call; empty if the file ends before or cannot be read.
  ByteView get(std::uint64_t offset, std::uint64_t length);

 private:
  QueuePool& queues_;
  const LogFile& file_;
  const std::uint64_t last_;  // the file's length; what is no whole unit is not looked at
  AlignedBuffer memory_;
  std::uint64_t begin_ = 0, end_ = 0;
};

}  // namespace kvferry::store::log
