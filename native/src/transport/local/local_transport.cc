#include "transport/local/local_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/block_copy.h"
#include "base/deadline.h"

namespace kvferry {
namespace {

// Between two looks at the clock.
constexpr std::uint64_t kStepBytes = 4u << 20;
constexpr std::size_t kStepBlocks = 1024;

bool overlap(const std::byte* a, const std::byte* b, std::uint64_t length) {
  const auto x = reinterpret_cast<std::uint64_t>(a), y = reinterpret_cast<std::uint64_t>(b);
  return x < y + length && y < x + length;
}

class LocalRail final : public Rail {
 public:
  explicit LocalRail(const RegionTable& regions) : regions_(regions) {}

  std::string_view transport() const override { return "local"; }
  Status execute(const Batch& batch, std::span<Status> results, Deadline deadline,
                 const std::atomic<bool>& cancelled) override;
  bool immediate() const override { return true; }
  void interrupt() override {}  // execute() looks at `cancelled` between two steps

 private:
  struct Job {
    Deadline deadline;
    const std::atomic<bool>& cancelled;
    Stores stores;
    MemoryGate* gate;
  };
  Status copy(const Job& job, std::byte* to, const std::byte* from, std::uint64_t length);
  Status flush(const Job& job);

  const RegionTable& regions_;
  std::vector<RegionTable::Pin> pins_;  // these two: of the batch under way
  std::vector<BlockCopy> blocks_;
  std::uint64_t block_bytes_ = 0;
  bool shut_out_ = false;  // by the gate: not all that was gathered was copied
};

// Copies what was gathered; then says whether to go on.
Status LocalRail::flush(const Job& job) {
  const GatePass pass(job.gate);
  if (pass.inside()) copy_blocks(blocks_, job.stores);
  blocks_.clear();
  block_bytes_ = 0;
  if (!pass.inside()) {
    shut_out_ = true;
    return gate_closed();
  }
  if (job.cancelled.load(std::memory_order_relaxed)) return {Code::kCancelled, "cancelled"};
  if (expired(job.deadline)) return {Code::kDeadlineExceeded, "local: the time allowed ran out between two copies"};
  return {};
}

// At the latest with the next flush(). The two ranges may share memory; then the target ends up as if the source had
// been set aside first.
Status LocalRail::copy(const Job& job, std::byte* to, const std::byte* from, std::uint64_t length) {
  if (overlap(to, from, length)) {
    const GatePass pass(job.gate);
    if (pass.inside()) std::memmove(to, from, length);
    return flush(job);
  }
  for (std::uint64_t at = 0; at < length; at += kStepBytes) {
    const std::uint64_t step = std::min(kStepBytes, length - at);
    blocks_.push_back({to + at, from + at, step});
    block_bytes_ += step;
    if (blocks_.size() >= kStepBlocks || block_bytes_ >= kStepBytes) KVF_RETURN_IF_ERROR(flush(job));
  }
  return {};
}

Status LocalRail::execute(const Batch& batch, std::span<Status> results, Deadline deadline,
                          const std::atomic<bool>& cancelled) {
  std::uint64_t bytes = 0;
  for (const RunOp& run : batch.runs) bytes += run.length;
  const Job job{deadline, cancelled, stores_for(bytes), batch.gate};
  RegionKey pinned;  // of no region
  Status unusable;
  Status stop = flush(job);
  for (std::size_t i = 0; i < batch.runs.size(); ++i) {
    const RunOp& run = batch.runs[i];
    if (run.remote != pinned) {
      pinned = run.remote;
      Result<RegionTable::Pin> pin = regions_.pin(pinned);
      unusable = pin.status();
      if (pin.ok()) pins_.push_back(*std::move(pin));
    }
    if (!unusable.ok()) {
      results[i] = unusable;
      continue;
    }
    std::byte* const remote = pins_.back().data() + run.remote_offset;
    const bool reads = batch.op == Op::kRead;
    if (stop.ok()) stop = copy(job, reads ? run.local : remote, reads ? remote : run.local, run.length);
    if (!stop.ok()) results[i] = stop;
  }
  (void)flush(job);  // nothing is left after a stop, and nothing to be stopped else
  if (std::exchange(shut_out_, false)) {
    for (Status& result : results) {
      if (result.ok()) result = gate_closed();
    }
  }
  pins_.clear();
  return stop.code() == Code::kCancelled ? Status() : stop;
}

}  // namespace

Result<std::unique_ptr<Rail>> LocalTransport::open_rail(const PeerContext&, Deadline) {
  return std::unique_ptr<Rail>(std::make_unique<LocalRail>(regions_));
}

}  // namespace kvferry
