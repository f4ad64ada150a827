#include "transport/shm/shm_rail.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"
#include "memory/address_range.h"

namespace kvferry {
namespace {

// As much is copied between two looks at the clock: a cancelled transfer stops soon.
constexpr std::uint64_t kStepBytes = 4u << 20;
constexpr std::size_t kStepBlocks = 512;

}  // namespace

ShmRail::ShmRail(Attachment attachment, Interrupt interrupt)
    : attachment_(std::move(attachment)), interrupt_(std::move(interrupt)), foreign_(attachment_.pid()) {}

Status ShmRail::stop_reason(const Job& job) const {
  if (job.cancelled.load(std::memory_order_relaxed)) return {Code::kCancelled, "cancelled"};
  if (expired(job.deadline)) return {Code::kDeadlineExceeded, "shm: the time allowed ran out between two copies"};
  return {};
}

Status ShmRail::check_attached() const {
  if (!attachment_.hung_up()) return {};
  return {Code::kPeerLost, "shm: process " + std::to_string(attachment_.pid()) + " detached"};
}

Status ShmRail::execute(const Batch& batch, std::span<Status> results, Deadline deadline,
                        const std::atomic<bool>& cancelled) {
  std::uint64_t bytes = 0;
  for (const RunOp& run : batch.runs) bytes += run.length;
  const Job job{batch, results, deadline, cancelled, stores_for(bytes)};
  regions_.clear();
  Status status;
  {
    // While it lives the owner does not take back memory that we are copying; if it let go of us before, it does not
    // look.
    const CopyLanes::Scope copying(attachment_.lanes(), 0);
    status = check_attached();
    if (status.ok()) {
      status = copy_all(job);
      verify_regions(job);
    }
  }
  // A process id says little once its process has ended: the attach socket tells whether it was still the owner.
  if (const Status lost = check_attached(); !lost.ok()) {
    status = lost;
    fail_from(job, 0, status);
  }
  return status.code() == Code::kCancelled ? Status() : status;  // then the rail is as good as before
}

// Gives `why` to all runs from `first` on that have no failure of their own.
void ShmRail::fail_from(const Job& job, std::size_t first, const Status& why) {
  for (std::size_t run = first; run < job.batch.runs.size(); ++run) {
    if (job.results[run].ok()) job.results[run] = why;
  }
}

Status ShmRail::copy_all(const Job& job) {
  for (std::size_t run = 0; run < job.batch.runs.size(); ++run) {
    Status status;
    if (regions_.empty() || regions_.back().entry.key != job.batch.runs[run].remote) {
      status = open_region(job, job.batch.runs[run].remote);
    }
    if (status.ok()) status = copy_run(job, run);
    if (status.ok()) continue;
    fail_from(job, run, status);
    const Status flushed = flush(job);
    return flushed.ok() ? status : flushed;
  }
  return flush(job);
}

// The region holds still from here to the end of execute(): its owner waits for our lane before it takes it back. So
// what is found out once is true for all its runs. Returns not OK if the rail cannot be used any more.
Status ShmRail::open_region(const Job& job, RegionKey key) {
  Region& region = regions_.emplace_back();
  const auto entry = attachment_.directory().resolve(key, 0, 0, job.batch.op);
  if (entry.ok()) {
    region.entry = *entry;
    return entry->arena_index == 0 ? Status() : map_region(job, &region);
  }
  region.entry.key = key;
  // Keys come from the peer's own list: what is not there any more was there once.
  const bool gone = entry.status().code() == Code::kNotFound;
  region.refused = gone ? Status(Code::kStale, entry.status().message()) : entry.status();
  return {};
}

Status ShmRail::map_region(const Job& job, Region* region) {
  region->mapped = attachment_.mapped_region(region->entry.key);
  if (region->mapped != nullptr) return {};
  KVF_RETURN_IF_ERROR(flush(job));  // regions that are gone will be unmapped
  interrupt_.clear();               // it was meant for an earlier job, or `cancelled` says the same
  KVF_RETURN_IF_ERROR(stop_reason(job));
  const auto base = attachment_.map_region(region->entry, Wait{job.deadline, &interrupt_});
  if (base.ok()) {
    region->mapped = *base;
    return {};
  }
  region->refused = base.status();
  if (is_final(base.status().code())) return {};
  // An exchange that was cut short leaves a connection that is of no more use; execute() keeps the rail if "cancelled".
  return base.status().code() == Code::kCancelled ? Status(Code::kUnavailable, base.status().message()) : base.status();
}

// Sets the run's result if the run cannot be copied; returns not OK if the rail cannot be used any more, or not go on.
Status ShmRail::copy_run(const Job& job, std::size_t run) {
  const RunOp& what = job.batch.runs[run];
  const Region& region = regions_.back();
  if (!region.refused.ok()) {
    job.results[run] = region.refused;
    return {};
  }
  if (!range_fits(what.remote_offset, what.length, region.entry.length)) {
    job.results[run] = check_range(region.entry, what.remote_offset, what.length);
    return {};
  }
  for (std::uint64_t done = 0; done < what.length;) {
    const std::uint64_t length = std::min(what.length - done, kStepBytes);
    std::byte* const local = what.local + done;
    if (region.mapped == nullptr) {
      foreign_.add(local, region.entry.base + what.remote_offset + done, length, run);
    } else {
      std::byte* const remote = region.mapped + what.remote_offset + done;
      const bool reads = job.batch.op == Op::kRead;
      blocks_.push_back({reads ? local : remote, reads ? remote : local, length});
      block_bytes_ += length;
    }
    done += length;
    if (foreign_.full() || blocks_.size() >= kStepBlocks || block_bytes_ >= kStepBytes) {
      KVF_RETURN_IF_ERROR(flush(job));
      KVF_RETURN_IF_ERROR(stop_reason(job));
    }
  }
  return {};
}

Status ShmRail::flush(const Job& job) {
  const GatePass pass(job.batch.gate);
  if (!pass.inside()) {
    blocks_.clear();
    block_bytes_ = 0;
    foreign_.drop(&failed_);
    fail_from(job, 0, gate_closed());  // which of them were copied does not matter any more
    return gate_closed();
  }
  if (!blocks_.empty()) {
    copy_blocks(blocks_, job.stores);
    blocks_.clear();
    block_bytes_ = 0;
  }
  return foreign_.empty() ? Status() : flush_foreign(job);
}

Status ShmRail::flush_foreign(const Job& job) {
  failed_.clear();
  // We may have been stopped for long. An owner that lost patience has let go of us, and its memory may be another's.
  Status status = check_attached();
  if (status.ok()) {
    status = foreign_.flush(job.batch.op, &failed_);
  } else {
    foreign_.drop(&failed_);
  }
  if (failed_.empty()) return status;
  const Status why =
      status.ok() ? Status(Code::kUnavailable, "shm: the owner's memory is not mapped there any more") : status;
  for (const std::size_t run : failed_) job.results[run] = why;
  return status;
}

// What was copied counts only if the region was still there afterwards.
void ShmRail::verify_regions(const Job& job) {
  for (const Region& region : regions_) {
    if (!region.refused.ok()) continue;
    const Status current = attachment_.directory().still_current(region.entry.key);
    if (current.ok()) continue;
    attachment_.forget_region(region.entry.key);
    for (std::size_t run = 0; run < job.batch.runs.size(); ++run) {
      const bool hers = job.batch.runs[run].remote == region.entry.key;
      if (hers && !is_final(job.results[run].code())) job.results[run] = current;
    }
  }
}

}  // namespace kvferry
