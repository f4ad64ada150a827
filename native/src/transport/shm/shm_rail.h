// One attachment to a peer of this host. No socket on the data path, no allocation once its lists have grown.
#pragma once

#include <string>
#include <vector>

#include "base/block_copy.h"
#include "transport/shm/attachment.h"
#include "transport/shm/foreign_copy.h"
#include "transport/transport.h"

namespace kvferry {

class ShmRail final : public Rail {
 public:
  ShmRail(Attachment attachment, Interrupt interrupt);

  std::string_view transport() const override { return "shm"; }
  Status execute(const Batch& batch, std::span<Status> results, Deadline deadline,
                 const std::atomic<bool>& cancelled) override;
  bool immediate() const override { return true; }
  void interrupt() override { interrupt_.set(); }

 private:
  struct Job {  // the arguments of execute()
    const Batch& batch;
    std::span<Status> results;
    Deadline deadline;
    const std::atomic<bool>& cancelled;
    Stores stores;
  };
  struct Region {  // one that this job has to do with
    DirectoryEntry entry;
    std::byte* mapped = nullptr;  // where it begins here; null: not an arena, the kernel copies
    Status refused;               // not OK: its runs cannot be moved, and why
  };
  Status copy_all(const Job& job);
  Status open_region(const Job& job, RegionKey key);
  Status map_region(const Job& job, Region* region);
  Status copy_run(const Job& job, std::size_t run);
  Status flush(const Job& job);
  Status flush_foreign(const Job& job);
  void verify_regions(const Job& job);
  static void fail_from(const Job& job, std::size_t first, const Status& why);
  Status stop_reason(const Job& job) const;
  Status check_attached() const;

  Attachment attachment_;
  Interrupt interrupt_;
  // Of the job under way.
  std::vector<Region> regions_;    // in the order met; the last is that of the run being looked at
  std::vector<BlockCopy> blocks_;  // to be copied by us
  std::uint64_t block_bytes_ = 0;
  ForeignCopy foreign_;  // to be copied by the kernel
  std::vector<std::size_t> failed_;
};

}  // namespace kvferry
