#include "transport/shm/shm_rail.h"

#include <utility>

#include "base/deadline.h"
#include "transport/shm/stream_copy.h"

namespace kvferry {

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
  const Job job{batch.op, batch.runs, results, deadline, cancelled, bytes >= kStreamFromBytes};
  interrupt_.clear();  // it was meant for an earlier job, or `cancelled` says the same
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
    settle_rest(job, 0, status);
  }
  return status.code() == Code::kCancelled ? Status() : status;  // then the rail is as good as before
}

// Gives `why` to all runs from `first` on that have no failure of their own.
void ShmRail::settle_rest(const Job& job, std::size_t first, const Status& why) {
  for (std::size_t run = first; run < job.runs.size(); ++run) {
    if (job.results[run].ok()) job.results[run] = why;
  }
}

Status ShmRail::copy_all(const Job& job) {
  for (std::size_t run = 0; run < job.runs.size(); ++run) {
    Status status = stop_reason(job);
    if (status.ok()) status = copy_run(job, run);
    if (status.ok()) continue;
    settle_rest(job, run, status);
    const Status flushed = flush(job);
    return flushed.ok() ? status : flushed;
  }
  return flush(job);
}

// Sets the run's result if the run cannot be copied; returns not OK if the rail cannot be used any more.
Status ShmRail::copy_run(const Job& job, std::size_t run) {
  const RunOp& what = job.runs[run];
  const auto entry = attachment_.directory().resolve(what.remote, what.remote_offset, what.length, job.op);
  if (!entry.ok()) {
    // Keys come from the peer's own list: what is not there any more was there once.
    const bool gone = entry.status().code() == Code::kNotFound;
    job.results[run] = gone ? Status(Code::kStale, entry.status().message()) : entry.status();
    return {};
  }
  if (entry->arena_index == 0) {
    foreign_.add(what.local, entry->base + what.remote_offset, what.length, run);
    return foreign_.full() ? flush(job) : Status();
  }
  const auto base = attachment_.map_region(*entry, Wait{job.deadline, &interrupt_});
  if (!base.ok()) {
    // An exchange that was cut short leaves a connection that is of no more use; execute() keeps the rail if
    // "cancelled".
    const bool cut = base.status().code() == Code::kCancelled;
    job.results[run] = cut ? Status(Code::kUnavailable, base.status().message()) : base.status();
    return is_final(base.status().code()) ? Status() : job.results[run];
  }
  std::byte* const remote = *base + what.remote_offset;
  std::byte* const to = job.op == Op::kRead ? what.local : remote;
  const std::byte* const from = job.op == Op::kRead ? remote : what.local;
  if (job.streaming && what.length >= kStreamMinRunBytes) {
    copy_streaming(to, from, what.length);
  } else {
    copy_cached(to, from, what.length);
  }
  return {};
}

Status ShmRail::flush(const Job& job) {
  if (foreign_.empty()) return {};
  failed_.clear();
  const Status status = foreign_.flush(job.op, &failed_);
  const Status why =
      status.ok() ? Status(Code::kUnavailable, "shm: the owner's memory is not mapped there any more") : status;
  for (const std::size_t run : failed_) job.results[run] = why;
  return status;
}

// What was copied counts only if the region was still there afterwards.
void ShmRail::verify_regions(const Job& job) {
  RegionKey checked;
  Status current;
  for (std::size_t run = 0; run < job.runs.size(); ++run) {
    if (job.runs[run].remote != checked) {
      checked = job.runs[run].remote;
      current = attachment_.directory().still_current(checked);
      if (!current.ok()) attachment_.forget_region(checked);
    }
    if (!current.ok() && !is_final(job.results[run].code())) job.results[run] = current;
  }
}

}  // namespace kvferry
