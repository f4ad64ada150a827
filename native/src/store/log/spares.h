// Files of segments that hold nothing any more, kept for new segments: to write over blocks that were written before is
// half as much work for a file system as to write new ones, and to free them costs milliseconds. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "store/log/disk.h"
#include "store/log/queue_pool.h"

namespace kvferry::store::log {

struct Account;

class Spares {
 public:
  Spares(std::shared_ptr<Disk> disk, QueuePool& queues, Account& account)
      : disk_(std::move(disk)), queues_(queues), account_(account) {}
  ~Spares();

  void add(LogFile file, std::uint64_t disk_bytes);  // which the account has already
  // The longest, no longer in the account.
  std::optional<LogFile> take();
  // Removes one unless there are no more than `keep`. False: there is nothing to remove.
  bool drop_one(std::size_t keep);

 private:
  struct Spare {
    LogFile file;
    std::uint64_t disk_bytes = 0;
  };
  std::optional<Spare> pop(bool longest, std::size_t keep);

  const std::shared_ptr<Disk> disk_;
  QueuePool& queues_;
  Account& account_;
  std::mutex mutex_;
  std::vector<Spare> spares_;  // by length, the shortest first; guarded by mutex_
};

}  // namespace kvferry::store::log
