// One attachment to a peer of this host. No socket on the data path.
#pragma once

#include <string>
#include <vector>

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
    Op op;
    std::span<const RunOp> runs;
    std::span<Status> results;
    Deadline deadline;
    const std::atomic<bool>& cancelled;
    bool streaming;
  };
  Status copy_all(const Job& job);
  Status copy_run(const Job& job, std::size_t run);
  Status flush(const Job& job);
  void verify_regions(const Job& job);
  static void settle_rest(const Job& job, std::size_t first, const Status& why);
  Status stop_reason(const Job& job) const;
  Status check_attached() const;

  Attachment attachment_;
  Interrupt interrupt_;
  ForeignCopy foreign_;
  std::vector<std::size_t> failed_;  // scratch
};

}  // namespace kvferry
