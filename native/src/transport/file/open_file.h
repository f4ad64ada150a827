// One open file and how its bytes are moved: directly between disk and memory, or through the page cache.
//
// Direct access takes whole, aligned units only. What is no whole unit is written through the page cache, on a
// descriptor of its own. Both see the same bytes as long as no part of the file is written both ways at once: the rail
// sees to that.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/unique_fd.h"
#include "io/direct_access.h"
#include "kvferry/file_options.h"
#include "kvferry/status.h"

namespace kvferry {

class OpenFile {
 public:
  // kInvalidArgument (not a regular file or block device, no length), kNotFound, kPermissionDenied, kOutOfRange
  // (shorter than asked), kUnsupported (direct access), kResourceExhausted (no space). The status names the path.
  static Result<std::shared_ptr<OpenFile>> open(const std::string& path, const FileOptions& options);

  const std::string& path() const { return path_; }
  std::uint64_t length() const { return length_; }  // of the region
  FileGeometry geometry() const;
  int buffered_fd() const { return buffered_.get(); }
  int direct_fd() const { return direct_.get(); }
  FileSync sync() const { return options_.sync; }
  std::string note() const;  // how its bytes are moved, and why not better

  // The file system refused direct access at a request although it had allowed it at open. False: it was asked for
  // with kAlways, so the request fails.
  bool give_up_direct(int error);

  // The kernel reports a failed write-back once and then forgets it, though what was written before may be lost, by
  // whichever transfer. So a failed sync stays with the file, and every later write fails with it.
  void set_sync_failure(const Status& why);
  Status sync_failure() const;

 private:
  OpenFile(std::string path, const FileOptions& options) : path_(std::move(path)), options_(options) {}
  Status open_buffered(bool* created);
  Status check_kind();
  Status settle_length();
  Status open_direct();
  Status persist_name() const;

  const std::string path_;
  const FileOptions options_;
  std::uint64_t length_ = 0;
  UniqueFd buffered_, direct_;
  FileGeometry geometry_;  // as of open
  std::string allocation_note_;
  std::atomic<bool> direct_given_up_{false};

  mutable std::mutex mutex_;  // guards what follows
  std::string why_buffered_;
  Status sync_failure_;
};

}  // namespace kvferry
