// A directory has one log at a time: an advisory lock on its file LOCK, which names the process that holds it.
#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.h"
#include "kvferry/status.h"

namespace kvferry::store::log {

class DirectoryLock {
 public:
  // kUnavailable: another one holds it, named by its process id.
  static Result<DirectoryLock> take(const std::string& directory);
  std::uint64_t disk_bytes() const;

 private:
  explicit DirectoryLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;  // closing it gives the lock back
};

}  // namespace kvferry::store::log
