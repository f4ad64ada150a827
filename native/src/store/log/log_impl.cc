#include "store/log/log_impl.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/deadline.h"
#include "base/log.h"
#include "store/log/recovery.h"

namespace kvferry::store {
namespace log {
namespace {

constexpr std::uint64_t kLeastSegment = 64 << 10, kUsualSegment = 256 << 20, kMostSegment = 4ull << 30;
constexpr std::uint64_t kFewSegments = 64, kManySegments = 256;
constexpr std::uint64_t kGroupBytes = 64 << 20;  // about what a batch writes at once

// Few enough that each may stay open, many enough that one of them is a small part.
std::uint64_t usual_segment_bytes(std::uint64_t capacity) {
  const std::uint64_t bytes = std::min(capacity / kFewSegments, std::max(kUsualSegment, capacity / kManySegments));
  return std::clamp(bytes, kLeastSegment, kMostSegment) / kUnit * kUnit;
}

Status check_options(LogOptions* options) {
  const auto wrong = [&](const std::string& what) {
    return Status(Code::kInvalidArgument, "log " + options->directory + ": " + what);
  };
  if (options->directory.empty() || options->directory.find('\0') != std::string::npos) {
    return wrong("a directory is needed");
  }
  if (options->segment_bytes == 0) options->segment_bytes = usual_segment_bytes(options->capacity);
  options->segment_bytes = options->segment_bytes / kUnit * kUnit;
  if (options->segment_bytes < kLeastSegment) return wrong("segment_bytes is below 64 KiB");
  if (options->capacity < 4 * options->segment_bytes) {
    return wrong("a capacity of " + std::to_string(options->capacity) + " bytes is too little: at least " +
                 std::to_string(4 * options->segment_bytes) + " are needed");
  }
  if (!(options->compact_below >= 0 && options->compact_below < 1)) return wrong("compact_below is not in [0, 1)");
  return {};
}

// Room for what the file system itself needs to keep a file of that length.
std::uint64_t usable(std::uint64_t segment_bytes) {
  return (segment_bytes - std::min<std::uint64_t>(64 << 10, segment_bytes / 16)) / kUnit * kUnit;
}

}  // namespace

LogImpl::LogImpl(LogOptions options, DirectoryLock lock)
    : lock_(std::move(lock)), context_(std::move(options)), table_(context_), compactor_(context_, table_) {
  context_.segment_length = usable(context_.options.segment_bytes);
  context_.account.disk_bytes += lock_.disk_bytes();
}

Status LogImpl::start(const Recovered& recovered) {
  KVF_ASSIGN_OR_RETURN(note_, probe(context_));
  KVF_RETURN_IF_ERROR(Recovery(context_, table_, recovered).run());
  const LogUsage found = usage();
  log_event(LogLevel::kInfo, "log_opened",
            {{"directory", context_.options.directory},
             {"how", note_},
             {"capacity", found.capacity},
             {"disk_bytes", found.disk_bytes},
             {"records", found.live_records},
             {"damaged", found.damaged_records}});
  keeper_ = std::thread([this] { keep(); });
  return {};
}

void LogImpl::keep() {
  for (;;) {
    SegmentTable::Work work = table_.wait_for_work();
    if (work.stop) return;
    table_.end_compaction(work.compact, compactor_.empty(work.compact));
    work.compact.reset();
    table_.work_is_done();
  }
}

void LogImpl::close() {
  table_.close();
  if (keeper_.joinable()) keeper_.join();
}

Result<LogPlace> LogImpl::append(const LogRecord& record, ConstPieces pieces, Deadline deadline) {
  const LogWrite write{record, pieces};
  return std::move(append_batch(std::span(&write, 1), deadline).front());
}

Status LogImpl::check(const LogWrite& write) const {
  const auto wrong = [&](const std::string& what) {
    return Status(Code::kInvalidArgument, "log: object " + write.record.id.to_string() + ": " + what);
  };
  if (write.record.key.size() > kMaxKeyBytes) return wrong("its key is longer than 1 KiB");
  if (write.record.attributes.size() > kMaxAttributeBytes) return wrong("its attributes are longer than 8 KiB");
  std::uint64_t bytes = 0;
  for (const auto& piece : write.pieces) bytes += piece.size();
  if (bytes != write.record.bytes) {
    return wrong("its pieces have " + std::to_string(bytes) + " bytes, said were " +
                 std::to_string(write.record.bytes));
  }
  if (bytes <= table_.largest_object()) return {};
  return {Code::kResourceExhausted, "log " + context_.options.directory + ": " + std::to_string(bytes) +
                                        " bytes are more than it takes in one object (" +
                                        std::to_string(table_.largest_object()) + ")"};
}

std::vector<Result<LogPlace>> LogImpl::append_batch(std::span<const LogWrite> writes, Deadline deadline) {
  Results results(writes.size(), Result<LogPlace>(Code::kInternal, "not tried"));
  const std::uint64_t most = std::min(kGroupBytes, context_.segment_length / 4);
  std::vector<std::size_t> group;
  std::vector<Reservation> kept;  // nothing moves before all places are returned
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < writes.size(); ++i) {
    const Status checked = check(writes[i]);
    if (!checked.ok()) {
      results[i] = checked;
      continue;
    }
    const LogRecord& record = writes[i].record;
    const std::uint64_t needed =
        whole_units(record.bytes) +
        2 * RecordEntry::encoded_bytes(record.key.size(), record.attributes.size(), record.bytes);
    if (!group.empty() && (bytes + needed > most || group.size() == kMaxGroupRecords)) {
      append_group(writes, std::exchange(group, {}), &results, &kept, deadline);
      bytes = 0;
    }
    group.push_back(i);
    bytes += needed;
  }
  if (!group.empty()) append_group(writes, group, &results, &kept, deadline);
  return results;
}

void LogImpl::append_group(std::span<const LogWrite> writes, const std::vector<std::size_t>& which, Results* results,
                           std::vector<Reservation>* kept, Deadline deadline) {
  GroupWriter group;
  for (const std::size_t i : which) group.add(writes[i]);
  const auto fail = [&](const Status& why) {
    for (const std::size_t i : which) (*results)[i] = why;
  };
  Result<Reservation> reserved = table_.reserve(group, Writer::kCaller, deadline);
  if (!reserved.ok()) return fail(reserved.status());
  kept->push_back(*std::move(reserved));
  const Reservation& place = kept->back();
  const bool sync = context_.options.sync == SsdSync::kEveryCommit;
  const Status written = group.write(place.segment->file, place.place, sync, context_.queues, deadline);
  context_.account.written += place.bytes;
  if (!written.ok()) {
    table_.give_up(place, written);
    return fail(written);
  }
  table_.settle(place, group.take_entries());
  context_.account.stored += group.payload_bytes();
  for (std::uint32_t i = 0; i < which.size(); ++i) {
    (*results)[which[i]] =
        LogPlace{place.segment->header.number, place.place.first_record + i, writes[which[i]].record.bytes};
  }
}

Status LogImpl::read(const LogPlace& place, const ObjectId& id, std::uint64_t offset, std::span<std::byte> target,
                     Deadline deadline) {
  const LogRead read{place, id, offset, target};
  return read_batch(std::span(&read, 1), deadline).front();
}

std::vector<Status> LogImpl::read_batch(std::span<const LogRead> reads, Deadline deadline) {
  std::vector<Status> statuses(reads.size());
  std::vector<ReadItem> items;
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    Result<ReadItem> item = table_.locate(reads[i]);
    statuses[i] = item.status();
    if (!item.ok() || reads[i].target.empty()) continue;
    items.push_back(*std::move(item));
    which.push_back(i);
  }
  if (!items.empty()) RecordReader::read(items, context_.queues, deadline);
  for (std::size_t i = 0; i < items.size(); ++i) {
    statuses[which[i]] = items[i].status;
    if (items[i].status.code() == Code::kDataCorrupt) context_.account.corrupt_reads.found(items[i].status);
  }
  return statuses;
}

Status LogImpl::erase(const ObjectId& id, const LogPlace& place, Deadline deadline) {
  const LogErase erase{id, place};
  return table_.erase(std::span(&erase, 1), deadline).front();
}

std::vector<Status> LogImpl::erase_batch(std::span<const LogErase> erases, Deadline deadline) {
  return table_.erase(erases, deadline);
}

LogUsage LogImpl::usage() const {
  LogUsage out;
  table_.count(&out);
  const Account& account = context_.account;
  out.capacity = context_.options.capacity;
  out.largest_object = table_.largest_object();
  out.disk_bytes = account.disk_bytes;
  out.spare_bytes = account.spare_bytes;
  out.stored_bytes = account.stored;
  out.written_bytes = account.written;
  out.compacted_bytes = account.compacted;
  out.corrupt_reads = account.corrupt_reads.count();
  out.damaged_records = account.damaged_records;
  return out;
}

}  // namespace log

Result<std::unique_ptr<Log>> Log::open(LogOptions options, const Recovered& recovered) {
  KVF_RETURN_IF_ERROR(log::check_options(&options));
  KVF_RETURN_IF_ERROR(log::prepare_directory(options.directory));
  KVF_ASSIGN_OR_RETURN(log::DirectoryLock lock, log::DirectoryLock::take(options.directory));
  auto log = std::make_unique<log::LogImpl>(std::move(options), std::move(lock));
  KVF_RETURN_IF_ERROR(log->start(recovered));
  return std::unique_ptr<Log>(std::move(log));
}

}  // namespace kvferry::store
