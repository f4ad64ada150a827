// What the log asks of the file system: the seam at which tests let a disk fail. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "io/io_queue.h"
#include "kvferry/status.h"

namespace kvferry::store::log {

struct LogFile {
  std::string path;
  UniqueFd fd;
  std::uint64_t bytes = 0;             // its length when it was opened
  bool direct = false;                 // past the page cache
  std::uint64_t memory_alignment = 1;  // of what is read into and written from
  std::string note;                    // how it is read and written, and why not better
};

class Disk {
 public:
  virtual ~Disk() = default;
  // A new file of `bytes`, all its space allocated. `direct`: if the file system allows it. Nothing is left on failure.
  virtual Result<LogFile> create(const std::string& path, std::uint64_t bytes, bool direct) = 0;
  virtual Result<LogFile> open(const std::string& path, bool direct) = 0;
  virtual Status truncate(const LogFile& file, std::uint64_t bytes) = 0;
  virtual Status extend(const LogFile& file, std::uint64_t bytes) = 0;  // its space allocated up to there
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  virtual Status remove(const std::string& path) = 0;  // OK if it is not there
  virtual Status sync_directory(const std::string& path) = 0;
  virtual Result<std::vector<std::string>> list(const std::string& directory) = 0;  // names
  virtual std::shared_ptr<IoQueue> make_queue() = 0;
};

std::shared_ptr<Disk> real_disk(bool io_uring);

std::uint64_t allocated_bytes(int fd);  // what the file takes on disk, by st_blocks
std::uint64_t file_length(int fd);      // as of now

}  // namespace kvferry::store::log
