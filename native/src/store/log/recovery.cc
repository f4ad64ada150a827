#include "store/log/recovery.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "base/deadline.h"
#include "base/log.h"
#include "base/random.h"
#include "io/direct_access.h"

namespace kvferry::store::log {
namespace {

constexpr std::uint64_t kCheckedAtOnce = 4 << 20;
constexpr std::string_view kProbeName = "PROBE";
constexpr milliseconds kProbePatience{10000};

Result<LogFile> probe_once(LogContext& context, bool direct) {
  const std::string path = context.path(kProbeName);
  KVF_RETURN_IF_ERROR(context.disk->remove(path));  // of a process that died while it probed
  KVF_ASSIGN_OR_RETURN(LogFile file, context.disk->create(path, 2 * kUnit, direct));
  AlignedBuffer out(kUnit), in(kUnit);
  fill_random(out.span());
  FileIo io(context.queues, deadline_in(kProbePatience));
  Status done = io.write(file, kUnit, out.span());
  if (done.ok()) done = io.read(file, kUnit, in.span());
  if (done.ok() && std::memcmp(out.data(), in.data(), kUnit) != 0) {
    done = {Code::kUnavailable, path + ": other bytes were read than had been written"};
  }
  context.queues.forget_file(file.fd.get());
  const Status removed = context.disk->remove(path);
  KVF_RETURN_IF_ERROR(done);
  KVF_RETURN_IF_ERROR(removed);
  return file;
}

}  // namespace

Status prepare_directory(const std::string& directory) {
  if (::mkdir(directory.c_str(), 0700) == 0 || errno == EEXIST) return {};
  const int error = errno;
  std::string what = "log " + directory + ": cannot be made";
  // Where the disk is not mounted, directories would be made, and filled, on another one.
  if (error == ENOENT) what += ", for the directory that it should be in is not there: mount its disk, or make it";
  return errno_status(file_error_code(error), what, error);
}

Result<std::string> probe(LogContext& context) {
  Result<LogFile> file = probe_once(context, context.options.direct);
  std::string refused;
  if (!file.ok() && file.status().code() == Code::kInvalidArgument && context.options.direct) {
    refused = ": a direct request was refused: " + file.status().message();
    file = probe_once(context, false);
  }
  if (!file.ok()) return file.status().with_context("log " + context.options.directory + " cannot be used");
  context.direct = file->direct;
  return (refused.empty() ? file->note : "buffered" + refused) + "; by " + context.queues.note();
}

Status Recovery::run() {
  KVF_ASSIGN_OR_RETURN(const std::vector<std::string> names, context_.disk->list(context_.options.directory));
  std::vector<std::uint32_t> numbers;
  std::size_t foreign = 0;
  for (const std::string& name : names) {
    std::uint32_t number = 0;
    if (parse_segment_name(name, &number)) {
      numbers.push_back(number);
    } else if (is_spare_name(name)) {
      KVF_RETURN_IF_ERROR(context_.disk->remove(context_.path(name)));
    } else if (name != "LOCK") {
      ++foreign;
    }
  }
  // The newest first: what comes later of an object that was seen is outdated.
  std::sort(numbers.begin(), numbers.end(), std::greater<>());
  for (const std::uint32_t number : numbers) KVF_RETURN_IF_ERROR(take_file(number));
  std::erase_if(numbers, [&](std::uint32_t number) { return context_.foreign.count(number) != 0; });
  table_.start_at(numbers.empty() ? 1 : numbers.front() + 1, next_sequence_);
  foreign += context_.foreign.size();
  if (foreign > 0) {
    log_event(LogLevel::kWarning, "log_foreign_files", {{"directory", context_.options.directory}, {"count", foreign}});
  }
  return {};
}

Status Recovery::take_file(std::uint32_t number) {
  const std::string path = context_.path(segment_name(number));
  Result<LogFile> file = context_.disk->open(path, context_.direct);
  if (!file.ok()) {
    if (file.status().code() != Code::kInvalidArgument) return file.status();
    context_.foreign.insert(number);
    return {};
  }
  Result<SegmentHeader> header = read_segment_header(*file, context_.queues);
  if (header.ok() && header->number == number) return take_segment(*std::move(file), *header);
  context_.queues.forget_file(file->fd.get());
  if (header.ok()) return drop_file(path, {Code::kDataCorrupt, "its header is of another segment"});
  if (header.status().code() == Code::kProtocolError) {
    context_.foreign.insert(number);
    return {};
  }
  if (header.status().code() == Code::kUnsupported) {
    return Status(Code::kUnsupported, header.status().message() + "; use another directory, or empty this one");
  }
  return drop_file(path, header.status());
}

Status Recovery::drop_file(const std::string& path, const Status& why) {
  if (why.code() != Code::kNotFound) {
    ++context_.account.damaged_records;
    log_event(LogLevel::kWarning, "log_segment_dropped", {{"path", path}, {"why", why}});
  }
  return context_.disk->remove(path);
}

Status Recovery::take_segment(LogFile file, const SegmentHeader& header) {
  Result<Erasures> erasures = read_erasures(file, header, context_.queues);
  if (!erasures.ok()) {
    context_.queues.forget_file(file.fd.get());
    return drop_file(file.path, erasures.status());
  }
  const SegmentIndex index = read_segment_index(file, header, context_.queues);
  const auto segment = table_.adopt(std::move(file), header);
  context_.account.damaged_records += erasures->damaged_sectors();
  segment->erasures = *std::move(erasures);
  segment->slots.resize(index.next_record);
  segment->tail = index.tail;
  segment->state = index.sealed ? Segment::State::kSealed : Segment::State::kClosing;
  outdated_.clear();
  std::vector<const RecordEntry*> live;
  for (auto entry = index.entries.rbegin(); entry != index.entries.rend(); ++entry) {
    next_sequence_ = std::max(next_sequence_, entry->sequence + 1);
    if (take_entry(segment, *entry, !index.sealed && entry->offset >= index.settled_to)) live.push_back(&*entry);
  }
  table_.insert(segment);
  if (!outdated_.empty()) {
    KVF_RETURN_IF_ERROR(table_.write_erasures(*segment, outdated_, deadline_in(kBackgroundPatience)));
  }
  for (const RecordEntry* entry : live) {
    recovered_({entry->id, entry->key, entry->bytes, entry->digest, entry->attributes}, segment->place(entry->record));
  }
  if (index.sealed && segment->live_records > 0) return {};
  ByteWriter footer;
  for (auto entry = live.rbegin(); entry != live.rend(); ++entry) (*entry)->encode(footer);
  segment->footer = footer.take();
  segment->footer_entries = static_cast<std::uint32_t>(live.size());
  table_.seal(segment);
  return {};
}

// Whether it lives.
bool Recovery::take_entry(const std::shared_ptr<Segment>& segment, const RecordEntry& entry, bool may_be_torn) {
  bool live = !segment->erasures.contains(entry.record);
  if (live && may_be_torn && !is_whole(segment, entry)) {
    live = false;
    outdated_.push_back(entry.record);
    ++context_.account.damaged_records;
  }
  if (live && !seen_.insert(entry.id).second) {
    live = false;
    outdated_.push_back(entry.record);
  }
  live ? segment->add_live(entry) : segment->add_dead(entry);
  return live;
}

bool Recovery::is_whole(const std::shared_ptr<Segment>& segment, const RecordEntry& entry) {
  AlignedBuffer memory(std::min(kCheckedAtOnce, entry.bytes));
  for (std::uint64_t at = 0; at < entry.bytes; at += kCheckedAtOnce) {
    ReadItem item;
    item.segment = segment;
    item.payload = entry.offset;
    item.bytes = entry.bytes;
    item.offset = at;
    item.target = memory.span().first(std::min(kCheckedAtOnce, entry.bytes - at));
    item.first_chunk = at / kChunkBytes;
    const auto sums = entry.sums.begin() + static_cast<std::ptrdiff_t>(item.first_chunk);
    item.sums.assign(sums, sums + static_cast<std::ptrdiff_t>(chunks_of(item.target.size())));
    RecordReader::read(std::span(&item, 1), context_.queues, deadline_in(kBackgroundPatience));
    if (!item.status.ok()) return false;
  }
  return true;
}

}  // namespace kvferry::store::log
