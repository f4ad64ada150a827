// Moves runs between host memory and open files of this node, many requests under way at once.
//
// Whatever happens, execute() returns only when the kernel is done with all memory it was given: at a deadline or a
// cancel it asks for what is under way to be stopped, and waits for the answers. A disk that hangs therefore holds it
// up, as nothing else could keep the caller's memory safe.
//
// There is one such rail per engine, so that no two batches run at once. Within a batch all whole units are written
// first, directly, and when that is done the ragged ends, through the page cache: the kernel keeps both views of a file
// the same only for those who do not write both ways at once, not even side by side.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "io/bounce_buffers.h"
#include "io/io_queue.h"
#include "memory/region_table.h"
#include "transport/file/file_table.h"
#include "transport/file/run_cutter.h"
#include "transport/transport.h"

namespace kvferry {

class FileRail final : public Rail {
 public:
  // The tables outlive the rail; the queue is shared with whoever tells it what to forget.
  FileRail(std::shared_ptr<IoQueue> queue, const RegionTable& regions, const FileTable& files);
  ~FileRail() override;

  bool asks_gate() const override { return false; }  // the kernel moves the bytes
  std::string_view transport() const override { return "file"; }
  Status execute(const Batch& batch, std::span<Status> results, Deadline deadline,
                 const std::atomic<bool>& cancelled) override;
  void interrupt() override {}  // execute() looks at `cancelled` every few milliseconds

 private:
  struct Target {  // a file that the batch names
    RegionKey key;
    RegionTable::Pin pin;
    std::shared_ptr<OpenFile> file;
    FileGeometry geometry;
    Status unusable;
    bool written = false;
  };
  struct Run {  // what of it is still to come
    RunCutter cutter;
    std::size_t target = 0;
    std::uint64_t moved = 0;
    std::uint64_t memory = 0;  // id of the registered region that holds it
  };
  struct Slot {  // a request under way
    std::uint32_t run = 0;
    FilePart part;
    std::uint64_t moved = 0;  // of part.io_length
    std::uint32_t bounce = BounceBuffers::kNone;
    int fd = -1;
  };
  struct Job {  // the arguments of execute()
    const Batch& batch;
    std::span<Status> results;
    Deadline deadline;
    const std::atomic<bool>& cancelled;
  };
  enum class Pass : std::uint8_t { kWholeUnits, kRaggedEnds };

  void prepare(const Job& job);
  std::size_t target_of(RegionKey key, Op op);
  std::uint64_t memory_of(const RunOp& run);
  Status move_all(const Job& job, Pass pass);
  bool start_next(const Job& job, Pass pass);
  bool start_part(const Job& job, std::uint32_t run, const FilePart& part);
  void start_request(const Job& job, std::uint32_t slot);
  void collect(const Job& job, Deadline until);
  void finish_part(const Job& job, std::uint32_t slot, std::int64_t value);
  bool go_on(const Job& job, std::uint32_t slot, std::int64_t value);
  bool retry_buffered(std::uint32_t slot, std::int64_t value);
  Status sync_all(const Job& job);
  Status sync(const Job& job, Target* target);
  Status stop_reason(const Job& job) const;
  Status request_error(const Job& job, const Slot& slot, std::int64_t value) const;

  const std::shared_ptr<IoQueue> queue_;
  const RegionTable& regions_;
  const FileTable& files_;
  BounceBuffers bounce_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;

  // Of the batch under way; kept for their memory.
  std::vector<Target> targets_;
  std::vector<RegionTable::Pin> memories_;
  std::vector<Run> runs_;
  std::vector<IoResult> done_;
  std::size_t next_run_ = 0;
};

}  // namespace kvferry
