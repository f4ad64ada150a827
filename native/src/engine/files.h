// The files that are regions of this node: opened, described, closed. Thread-safe.
#pragma once

#include <string>

#include "kvferry/engine.h"
#include "memory/region_table.h"
#include "transport/file/file_queues.h"
#include "transport/file/file_table.h"

namespace kvferry {

class Files {
 public:
  Files(RegionTable& regions, bool use_uring) : regions_(regions), queues_(use_uring) {}

  Result<RegionInfo> open(const std::string& path, const FileOptions& options);
  Result<std::string> note(RegionKey key);  // kNotFound: no file
  void forget(RegionKey key);               // after the region was removed; of any kind
  void close_all() { table_.clear(); }      // once no rail works any more

  const FileTable& table() const { return table_; }
  FileQueues& queues() { return queues_; }

 private:
  RegionTable& regions_;
  FileQueues queues_;
  FileTable table_;
};

}  // namespace kvferry
