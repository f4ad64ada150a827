// Host memory to and from files of this node, for the node as its own peer. Thread-safe.
#pragma once

#include "transport/file/file_queues.h"
#include "transport/file/file_rail.h"
#include "transport/transport.h"

namespace kvferry {

class FileTransport final : public Transport {
 public:
  // All outlive the transport.
  FileTransport(FileQueues& queues, const RegionTable& regions, const FileTable& files)
      : queues_(queues), regions_(regions), files_(files) {}

  std::string_view name() const override { return "file"; }
  Status probe() const override { return {}; }
  std::size_t rails_per_path() const override { return 1; }  // FileRail says why, and for the next
  bool has_spare_rail() const override { return false; }
  Result<std::unique_ptr<Rail>> open_rail(const PeerContext&, Deadline) override {
    return std::unique_ptr<Rail>(std::make_unique<FileRail>(queues_.create(), regions_, files_));
  }

 private:
  FileQueues& queues_;
  const RegionTable& regions_;
  const FileTable& files_;
};

}  // namespace kvferry
