// The open files of one engine, by region. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "kvferry/types.h"
#include "transport/file/open_file.h"

namespace kvferry {

class FileTable {
 public:
  void add(RegionKey key, std::shared_ptr<OpenFile> file) {
    const std::lock_guard lock(mutex_);
    files_[key] = std::move(file);
  }
  std::shared_ptr<OpenFile> find(RegionKey key) const {  // nullptr: not a file
    const std::lock_guard lock(mutex_);
    const auto it = files_.find(key);
    return it == files_.end() ? nullptr : it->second;
  }
  void remove(RegionKey key) {
    const std::lock_guard lock(mutex_);
    files_.erase(key);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    files_.clear();
  }

 private:
  mutable std::mutex mutex_;
  std::map<RegionKey, std::shared_ptr<OpenFile>> files_;  // guarded by mutex_
};

}  // namespace kvferry
