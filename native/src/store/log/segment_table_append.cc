// Where a group goes, and what happens when there is no room for it.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/deadline.h"
#include "base/random.h"
#include "store/log/segment_table.h"

namespace kvferry::store::log {
namespace {

constexpr milliseconds kLongWait{3600000}, kMoment{5};
constexpr std::uint64_t kRecordBytesAtLeast = 512;  // smaller records fill the erasure bits before the file

}  // namespace

bool SegmentTable::fits(const Segment& segment, const GroupWriter& group) const {
  const std::uint64_t footer = whole_units(segment.footer_reserved + group.index_bytes() + Trailer::kBytes);
  return segment.tail + group.bytes() + footer <= segment.header.length &&
         segment.slots.size() + group.records() <= segment.erasures.capacity();
}

std::uint64_t SegmentTable::length_for(const GroupWriter& group) const {
  const std::uint64_t least = kUnit + Erasures::bytes_for(context_.segment_length / kRecordBytesAtLeast) +
                              group.bytes() + whole_units(group.index_bytes() + Trailer::kBytes);
  return std::max(least, context_.segment_length);
}

std::uint64_t SegmentTable::largest_object() const {
  const std::uint64_t capacity = context_.options.capacity;
  const std::uint64_t around = 2 * context_.segment_length;  // the reserve of compaction, and what is no payload
  if (capacity <= around) return 0;
  const std::uint64_t room = capacity - around;
  return room - room / 1024;  // the checksums
}

// What compaction needs to make progress in a full log: a segment to move to before the first one is free, and what the
// indexes of several small ones take.
std::uint64_t SegmentTable::reserve_from(Writer writer) const {
  return writer == Writer::kCaller ? context_.segment_length + context_.segment_length / 4 : 0;
}

bool SegmentTable::has_room(std::uint64_t length, Writer writer) const {
  const std::uint64_t used = context_.account.disk_bytes - context_.account.spare_bytes;
  return used + length + reserve_from(writer) <= context_.options.capacity;
}

Result<Reservation> SegmentTable::reserve(const GroupWriter& group, Writer writer, Deadline deadline) {
  Lock lock(mutex_);
  for (;;) {
    if (closed_) return closed_status();
    if (active_is_compactions_ && has_room(0, Writer::kCaller)) active_is_compactions_ = false;
    const bool not_ours = active_is_compactions_ && writer == Writer::kCaller;
    if (active_ && !not_ours && fits(*active_, group)) return take(group);
    if (rolling_) {
      if (expired(deadline)) return {Code::kDeadlineExceeded, "log: waiting for a new segment took too long"};
      changed_.wait_until(lock, sooner(deadline, deadline_in(kLongWait)));
      continue;
    }
    if (!not_ours) retire_active();
    const std::uint64_t length = length_for(group);
    if (!not_ours && has_room(length, writer)) {
      KVF_RETURN_IF_ERROR(roll(lock, group, writer));
    } else {
      KVF_RETURN_IF_ERROR(await_room(lock, length, writer, deadline));
    }
  }
}

Reservation SegmentTable::take(const GroupWriter& group) {
  Segment& segment = *active_;
  ++segment.holds;
  Reservation out{active_, SegmentHold(mutex_, active_), {}, 0, 0, 0};
  out.bytes = group.bytes();
  out.index_bytes = group.index_bytes();
  out.records = static_cast<std::uint32_t>(group.records());
  out.place = {segment.header.salt, segment.tail, segment.settled_to(), next_sequence_,
               static_cast<std::uint32_t>(segment.slots.size())};
  next_sequence_ += out.records;
  segment.in_flight.insert(segment.tail);
  segment.tail += out.bytes;
  segment.footer_reserved += out.index_bytes;
  segment.slots.resize(segment.slots.size() + out.records, RecordSlot{{}, 0, 0, 0, RecordState::kPending});
  return out;
}

// Either there is some reason to look again, or there is none to expect room.
Status SegmentTable::await_room(Lock& lock, std::uint64_t length, Writer writer, Deadline deadline) {
  const std::string where = "log " + context_.options.directory;
  const std::string numbers = std::to_string(context_.account.disk_bytes) + " of " +
                              std::to_string(context_.options.capacity) + " bytes are in use, a segment of " +
                              std::to_string(length) + " is needed";
  if (!to_seal_.empty()) {  // its file is longer than it need be
    seal_one(lock);
    return {};
  }
  if (length + reserve_from(writer) + kUnit > context_.options.capacity) {
    return {Code::kResourceExhausted, where + ": larger than the log can ever hold: " + numbers};
  }
  const bool closing_files = context_.account.leaving > 0;  // a reader may still hold them
  const bool compaction = compacting_ || compaction_candidate() != nullptr;
  if (!closing_files && sealing_ == 0 && (writer == Writer::kCompaction || !compaction))
    return {Code::kResourceExhausted, where + " is full: " + numbers + "; erase some objects first"};
  if (expired(deadline)) return {Code::kDeadlineExceeded, where + ": no room was made in the time allowed: " + numbers};
  ++waiting_for_room_;
  work_.notify_all();
  changed_.wait_until(lock, sooner(deadline, deadline_in(closing_files ? kMoment : kLongWait)));
  --waiting_for_room_;
  return {};
}

Status SegmentTable::roll(Lock& lock, const GroupWriter& group, Writer writer) {
  const std::uint64_t length = length_for(group);
  const std::uint64_t erasure_bytes = Erasures::bytes_for(context_.segment_length / kRecordBytesAtLeast);
  const bool from_reserve = writer == Writer::kCompaction && !has_room(length, Writer::kCaller);
  while (context_.foreign.count(next_number_) != 0) ++next_number_;
  const std::uint32_t number = next_number_++;
  rolling_ = true;
  lock.unlock();
  Result<std::shared_ptr<Segment>> made = create(number, length, erasure_bytes);
  lock.lock();
  rolling_ = false;
  changed_.notify_all();
  work_.notify_all();  // there may be too little room now
  if (!made.ok()) return made.status();
  active_ = *made;
  active_is_compactions_ = from_reserve;
  segments_.emplace(number, *std::move(made));
  return {};
}

Result<std::shared_ptr<Segment>> SegmentTable::create(std::uint32_t number, std::uint64_t length,
                                                      std::uint64_t erasure_bytes) {
  SegmentHeader header;
  header.number = number;
  header.salt = random_u64();
  header.length = length;
  header.erasure_bytes = erasure_bytes;
  const std::string path = context_.path(segment_name(number));
  KVF_ASSIGN_OR_RETURN(LogFile file, make_file(length, path));
  const auto segment = adopt(std::move(file), header);
  const Status ready = write_start(*segment, path);
  if (ready.ok()) return segment;
  (void)context_.disk->remove(segment->file.path);  // the first failure is the one to tell
  return ready;
}

// One that was a segment before, or a new one, for which spares make room.
Result<LogFile> SegmentTable::make_file(std::uint64_t length, const std::string& path) {
  std::optional<LogFile> spare;
  if (length == context_.segment_length) spare = context_.spares.take();
  while (context_.account.disk_bytes + length > context_.options.capacity && context_.spares.drop_one(0)) continue;
  if (!spare) return context_.disk->create(path, length, context_.direct);
  const Status longer = context_.disk->extend(*spare, length);
  if (longer.ok()) return *std::move(spare);
  context_.queues.forget_file(spare->fd.get());
  KVF_RETURN_IF_ERROR(context_.disk->remove(spare->path));
  return longer;
}

// Header and empty erasures; only then does a spare file become a segment.
Status SegmentTable::write_start(Segment& segment, const std::string& path) {
  const bool spare = segment.file.path != path;
  AlignedBuffer start(spare ? segment.header.data_begin() : kUnit);
  if (start.data() == nullptr) return {Code::kResourceExhausted, path + ": no memory for its header"};
  const Bytes encoded = segment.header.encode();
  std::copy(encoded.begin(), encoded.end(), start.data());
  FileIo io(context_.queues, deadline_in(kBackgroundPatience));
  KVF_RETURN_IF_ERROR(io.write(segment.file, 0, start.span()));
  context_.account.written += start.size();
  const bool sync = context_.options.sync != SsdSync::kNone;
  if (sync) KVF_RETURN_IF_ERROR(io.sync(segment.file));
  if (spare) {
    KVF_RETURN_IF_ERROR(context_.disk->rename(segment.file.path, path));
    segment.file.path = path;
  }
  return sync ? context_.disk->sync_directory(context_.options.directory) : Status();
}

void SegmentTable::settle(const Reservation& reservation, const std::vector<RecordEntry>& entries) {
  Segment& segment = *reservation.segment;
  const std::lock_guard lock(mutex_);
  ByteWriter footer(std::move(segment.footer));
  for (const RecordEntry& entry : entries) {
    if (segment.slots[entry.record].state == RecordState::kPending) segment.add_live(entry);
    entry.encode(footer);
    ++segment.footer_entries;
  }
  segment.footer = footer.take();
  segment.in_flight.erase(reservation.place.offset);
  if (segment.state == Segment::State::kClosing && segment.in_flight.empty()) queue_seal(reservation.segment);
}

void SegmentTable::give_up(const Reservation& reservation, const Status& why) {
  std::vector<std::uint32_t> records(reservation.records);
  for (std::uint32_t i = 0; i < reservation.records; ++i) records[i] = reservation.place.first_record + i;
  // What of it did reach the disk must not be found again. Where that cannot be noted down, its checksums will tell.
  const Status noted = write_erasures(*reservation.segment, records, deadline_in(kBackgroundPatience));
  if (!noted.ok()) set_trouble(noted);
  const std::lock_guard lock(mutex_);
  Segment& segment = *reservation.segment;
  for (const std::uint32_t record : records) segment.drop(record);
  segment.in_flight.erase(reservation.place.offset);
  segment.footer_reserved -= reservation.index_bytes;
  segment.total_weight += reservation.bytes;
  // What failed here may fail again; a deadline says nothing about the file.
  if (active_ == reservation.segment && why.code() != Code::kDeadlineExceeded) retire_active();
  if (segment.state == Segment::State::kClosing && segment.in_flight.empty()) queue_seal(reservation.segment);
}

}  // namespace kvferry::store::log
