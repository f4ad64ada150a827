#include "transport/file/file_rail.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/deadline.h"
#include "transport/file/file_queues.h"

namespace kvferry {
namespace {

constexpr milliseconds kLookAround{10};                          // how soon a cancel or a deadline is noticed
constexpr std::uint64_t kBounceMemory = std::uint64_t{1} << 63;  // no region's id

}  // namespace

FileRail::FileRail(std::shared_ptr<IoQueue> queue, const RegionTable& regions, const FileTable& files)
    : queue_(std::move(queue)), regions_(regions), files_(files), slots_(queue_->depth()) {
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) free_slots_.push_back(slot);
}

FileRail::~FileRail() { queue_->forget_memory(kBounceMemory); }

Status FileRail::stop_reason(const Job& job) const {
  if (job.cancelled.load(std::memory_order_relaxed)) return {Code::kCancelled, "cancelled"};
  if (expired(job.deadline)) return {Code::kDeadlineExceeded, "file: the time allowed ran out"};
  return {};
}

Status FileRail::execute(const Batch& batch, std::span<Status> results, Deadline deadline,
                         const std::atomic<bool>& cancelled) {
  const Job job{batch, results, deadline, cancelled};
  prepare(job);
  Status status = move_all(job, Pass::kWholeUnits);
  if (status.ok() && batch.op == Op::kWrite) status = move_all(job, Pass::kRaggedEnds);
  if (status.ok() && batch.op == Op::kWrite) status = sync_all(job);
  for (std::size_t run = 0; run < runs_.size() && !status.ok(); ++run) {
    const Target& target = targets_[runs_[run].target];
    const bool unsynced = target.written && target.file->sync() != FileSync::kNone;
    if (results[run].ok() && (unsynced || runs_[run].moved < batch.runs[run].length)) results[run] = status;
  }
  targets_.clear();  // and with them the pins
  memories_.clear();
  return status.code() == Code::kCancelled ? Status() : status;
}

void FileRail::prepare(const Job& job) {
  runs_.clear();
  next_run_ = 0;
  for (std::size_t i = 0; i < job.batch.runs.size(); ++i) {
    const RunOp& op = job.batch.runs[i];
    Run run;
    run.target = target_of(op.remote, job.batch.op);
    const Target& target = targets_[run.target];
    run.cutter = RunCutter(target.geometry, job.batch.op, op.local, op.remote_offset, op.length);
    if (!target.unusable.ok()) job.results[i] = target.unusable;
    if (target.geometry.direct) run.memory = memory_of(op);
    runs_.push_back(run);
  }
}

std::size_t FileRail::target_of(RegionKey key, Op op) {
  for (std::size_t i = targets_.size(); i > 0; --i) {
    if (targets_[i - 1].key == key) return i - 1;
  }
  Target target;
  target.key = key;
  Result<RegionTable::Pin> pin = regions_.pin(key);
  if (pin.ok()) {
    target.pin = *std::move(pin);
    target.file = files_.find(key);
    if (!target.file) target.unusable = {Code::kInternal, "region " + std::to_string(key.id) + " is no open file"};
  } else {
    target.unusable = pin.status();
  }
  if (target.file) {
    target.geometry = target.file->geometry();
    if (op == Op::kWrite) target.unusable = target.file->sync_failure();
  }
  targets_.push_back(std::move(target));
  return targets_.size() - 1;
}

// The id of a region that holds the run's memory, told to the queue; 0 if none does.
std::uint64_t FileRail::memory_of(const RunOp& run) {
  for (std::size_t i = memories_.size(); i > 0; --i) {
    if (memories_[i - 1].covers(run.local, run.length)) return memory_id(memories_[i - 1].key());
  }
  RegionTable::Pin pin = regions_.pin_covering(run.local, run.length);
  if (!pin.held()) return 0;
  const std::uint64_t id = memory_id(pin.key());
  queue_->remember_memory(id, pin.data(), pin.length());
  memories_.push_back(std::move(pin));
  return id;
}

// Until all runs are moved or failed, or there is a reason to stop; nothing is under way afterwards.
Status FileRail::move_all(const Job& job, Pass pass) {
  if (pass == Pass::kRaggedEnds) {
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const RunOp& op = job.batch.runs[i];
      const FileGeometry& geometry = targets_[runs_[i].target].geometry;
      if (geometry.direct) runs_[i].cutter = RunCutter(geometry, job.batch.op, op.local, op.remote_offset, op.length);
    }
  }
  next_run_ = 0;
  Status stop;
  for (;;) {
    if (stop.ok()) {
      stop = stop_reason(job);
      if (!stop.ok()) queue_->cancel_all();
    }
    while (stop.ok() && !free_slots_.empty() && start_next(job, pass)) continue;
    if (free_slots_.size() == slots_.size()) return stop;
    collect(job, stop.ok() ? sooner(job.deadline, deadline_in(kLookAround)) : deadline_in(kLookAround));
  }
}

// False: there is nothing left to start, or no buffer to do it with now.
bool FileRail::start_next(const Job& job, Pass pass) {
  for (; next_run_ < runs_.size(); ++next_run_) {
    Run& run = runs_[next_run_];
    const bool two_passes = job.batch.op == Op::kWrite && targets_[run.target].geometry.direct;
    while (job.results[next_run_].ok() && !run.cutter.done()) {
      const RunCutter before = run.cutter;
      const FilePart part = run.cutter.next();
      const bool ragged = two_passes && part.how == FilePart::How::kBuffered;
      if (ragged != (pass == Pass::kRaggedEnds)) continue;
      if (start_part(job, static_cast<std::uint32_t>(next_run_), part)) return true;
      run.cutter = before;
      return false;
    }
  }
  return false;
}

// False: all bounce buffers are in use; there will be some when what is under way has ended.
bool FileRail::start_part(const Job& job, std::uint32_t run, const FilePart& part) {
  Target& target = targets_[runs_[run].target];
  Slot slot{run, part, 0, BounceBuffers::kNone, target.file->buffered_fd()};
  if (part.how != FilePart::How::kBuffered) slot.fd = target.file->direct_fd();
  if (part.how == FilePart::How::kBounced) {
    if (!bounce_.prepare()) {
      job.results[run] = {Code::kResourceExhausted, "file: no memory for aligned buffers"};
      return true;
    }
    slot.bounce = bounce_.take();
    if (slot.bounce == BounceBuffers::kNone) return false;
    queue_->remember_memory(kBounceMemory, bounce_.memory(), BounceBuffers::kLength);
    if (job.batch.op == Op::kWrite) {
      std::memcpy(bounce_.at(slot.bounce), job.batch.runs[run].local + part.begin, part.length);
    }
  }
  const std::uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  slots_[index] = slot;
  start_request(job, index);
  return true;
}

void FileRail::start_request(const Job& job, std::uint32_t slot) {
  const Slot& s = slots_[slot];
  const bool bounced = s.bounce != BounceBuffers::kNone;
  const RunOp& run = job.batch.runs[s.run];
  IoRequest request;
  request.kind = job.batch.op == Op::kRead ? IoRequest::Kind::kRead : IoRequest::Kind::kWrite;
  request.fd = s.fd;
  request.data = (bounced ? bounce_.at(s.bounce) : run.local + s.part.begin) + s.moved;
  request.length = static_cast<std::uint32_t>(s.part.io_length - s.moved);
  request.offset = s.part.io_offset + s.moved;
  request.tag = slot;
  request.memory = bounced ? kBounceMemory : runs_[s.run].memory;
  if (job.batch.op == Op::kWrite) targets_[runs_[s.run].target].written = true;
  queue_->start(request);
}

void FileRail::collect(const Job& job, Deadline until) {
  done_.clear();
  queue_->wait(until, &done_);
  for (const IoResult& result : done_) finish_part(job, result.tag, result.value);
}

void FileRail::finish_part(const Job& job, std::uint32_t slot, std::int64_t value) {
  if (go_on(job, slot, value)) return;
  const Slot& s = slots_[slot];
  const std::uint64_t lead = job.batch.runs[s.run].remote_offset + s.part.begin - s.part.io_offset;
  if (s.moved >= lead + s.part.length) {
    if (s.bounce != BounceBuffers::kNone && job.batch.op == Op::kRead) {
      std::memcpy(job.batch.runs[s.run].local + s.part.begin, bounce_.at(s.bounce) + lead, s.part.length);
    }
    runs_[s.run].moved += s.part.length;
  } else if (job.results[s.run].ok()) {
    job.results[s.run] = request_error(job, s, value);
  }
  bounce_.give_back(s.bounce);
  free_slots_.push_back(slot);
}

// True: the rest of the part is under way again.
bool FileRail::go_on(const Job& job, std::uint32_t slot, std::int64_t value) {
  Slot& s = slots_[slot];
  if (value > 0) s.moved += static_cast<std::uint64_t>(value);
  if (!job.results[s.run].ok() || !stop_reason(job).ok()) return false;
  const std::uint64_t lead = job.batch.runs[s.run].remote_offset + s.part.begin - s.part.io_offset;
  const bool enough = s.moved >= lead + s.part.length;
  const bool again = value == -EINTR || value == -EAGAIN || (value > 0 && !enough) || retry_buffered(slot, value);
  if (again) start_request(job, slot);
  return again;
}

// Direct access may be refused only now, or its rest after a short one because that rest has lost its alignment.
bool FileRail::retry_buffered(std::uint32_t slot, std::int64_t value) {
  Slot& s = slots_[slot];
  OpenFile& file = *targets_[runs_[s.run].target].file;
  if (value != -EINVAL || s.fd != file.direct_fd()) return false;
  if (s.moved % file.geometry().unit == 0 && !file.give_up_direct(EINVAL)) return false;
  s.fd = file.buffered_fd();
  return true;
}

Status FileRail::request_error(const Job& job, const Slot& slot, std::int64_t value) const {
  const Status stop = stop_reason(job);
  if (!stop.ok() && (value >= 0 || value == -ECANCELED || value == -EINTR)) return stop;
  const OpenFile& file = *targets_[runs_[slot.run].target].file;
  const bool read = job.batch.op == Op::kRead;
  const std::string what = "file " + file.path() + ": " + (read ? "reading " : "writing ") +
                           std::to_string(slot.part.length) + " bytes at offset " +
                           std::to_string(job.batch.runs[slot.run].remote_offset + slot.part.begin);
  if (value < 0) return errno_status(file_error_code(static_cast<int>(-value)), what, static_cast<int>(-value));
  const std::string end = std::to_string(slot.part.io_offset + slot.moved);
  if (read) return {Code::kOutOfRange, what + ": the file ends at " + end + "; it was longer when it was opened"};
  return {Code::kUnavailable, what + ": the kernel took nothing from offset " + end + " on and gave no reason"};
}

Status FileRail::sync_all(const Job& job) {
  for (Target& target : targets_) {
    if (!target.written || target.file->sync() == FileSync::kNone) continue;
    const Status synced = sync(job, &target);
    if (synced.code() == Code::kCancelled || synced.code() == Code::kDeadlineExceeded) return synced;
    if (synced.ok()) continue;
    target.file->set_sync_failure(synced);
    const auto index = static_cast<std::size_t>(&target - targets_.data());
    for (std::size_t run = 0; run < runs_.size(); ++run) {
      if (runs_[run].target == index && job.results[run].ok()) job.results[run] = synced;
    }
  }
  return {};
}

Status FileRail::sync(const Job& job, Target* target) {
  IoRequest request;
  request.kind = target->file->sync() == FileSync::kFull ? IoRequest::Kind::kSyncFull : IoRequest::Kind::kSyncData;
  request.fd = target->file->buffered_fd();
  queue_->start(request);
  Status stop;
  for (done_.clear(); done_.empty();) {
    queue_->wait(deadline_in(kLookAround), &done_);
    if (!done_.empty() || !stop.ok()) continue;
    stop = stop_reason(job);
    if (!stop.ok()) queue_->cancel_all();
  }
  const std::int64_t value = done_.front().value;
  if (value >= 0) return {};
  if (!stop.ok() && (value == -ECANCELED || value == -EINTR)) return stop;
  return errno_status(file_error_code(static_cast<int>(-value)), "file " + target->file->path() + ": syncing",
                      static_cast<int>(-value));
}

}  // namespace kvferry
