// How records are erased: dead in memory first, then on disk, and a segment that holds nothing any more goes away.
#include <array>
#include <utility>

#include "base/deadline.h"
#include "store/log/segment_table.h"

namespace kvferry::store::log {

std::vector<Status> SegmentTable::erase(std::span<const LogErase> erases, Deadline deadline) {
  std::vector<Status> statuses(erases.size());
  std::map<std::uint32_t, std::vector<std::size_t>> by_segment;
  for (std::size_t i = 0; i < erases.size(); ++i) by_segment[erases[i].place.segment].push_back(i);
  for (const auto& [number, which] : by_segment) erase_in(number, erases, which, &statuses, deadline);
  return statuses;
}

void SegmentTable::erase_in(std::uint32_t number, std::span<const LogErase> erases,
                            const std::vector<std::size_t>& which, std::vector<Status>* statuses, Deadline deadline) {
  std::shared_ptr<Segment> segment;
  Dead dead;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      for (const std::size_t i : which) (*statuses)[i] = closed_status();
      return;
    }
    segment = find(number);
    if (segment) dead = mark_dead(*segment, erases, which, statuses);
  }
  if (!segment) {
    for (const std::size_t i : which) (*statuses)[i] = {Code::kStale, "log: the segment is gone: erased, or moved"};
    return;
  }
  erase_copies(dead.forwards, deadline);
  const Status persisted = persist_dead(segment, dead.records, deadline);
  if (persisted.ok()) return;
  for (const std::size_t i : which) {
    if ((*statuses)[i].ok()) (*statuses)[i] = persisted;
  }
}

SegmentTable::Dead SegmentTable::mark_dead(Segment& segment, std::span<const LogErase> erases,
                                           const std::vector<std::size_t>& which, std::vector<Status>* statuses) {
  Dead dead;
  for (const std::size_t i : which) {
    const std::uint32_t record = erases[i].place.record;
    const bool there = record < segment.slots.size() && segment.slots[record].state == RecordState::kLive &&
                       segment.slots[record].id == erases[i].id;
    if (!there) {
      (*statuses)[i] = {Code::kStale, "log: object " + erases[i].id.to_string() + " is not (any more) there"};
      continue;
    }
    segment.drop(record);
    dead.records.push_back(record);
    const auto copy = moving_.find(key_of(erases[i].place));
    if (copy != moving_.end()) dead.forwards.push_back(copy->second);
  }
  return dead;
}

// Copies that compaction is making of what was just erased, perhaps not even written yet.
void SegmentTable::erase_copies(const std::vector<LogPlace>& places, Deadline deadline) {
  for (const LogPlace& place : places) {
    std::shared_ptr<Segment> segment;
    {
      const std::lock_guard lock(mutex_);
      segment = find(place.segment);
      if (segment) segment->drop(place.record);
    }
    if (!segment) continue;
    const Status noted = persist_dead(segment, std::array{place.record}, deadline);
    if (!noted.ok()) set_trouble(noted);
  }
}

// A file that holds nothing any more is removed, which spares it the writes.
Status SegmentTable::persist_dead(const std::shared_ptr<Segment>& segment, std::span<const std::uint32_t> records,
                                  Deadline deadline) {
  if (records.empty()) return {};
  bool remove = false;
  {
    const std::lock_guard lock(mutex_);
    remove = take_out_if_empty(segment);
    if (!remove && wants_compaction()) work_.notify_all();
  }
  if (!remove) return write_erasures(*segment, records, deadline);
  const Status removed = remove_file(segment);
  return removed.ok() ? removed : write_erasures(*segment, records, deadline);
}

Status SegmentTable::write_erasures(Segment& segment, std::span<const std::uint32_t> records, Deadline deadline) {
  const std::lock_guard one_at_a_time(segment.erase_mutex);
  std::set<std::uint64_t> units;
  AlignedBuffer memory;
  {
    const std::lock_guard lock(mutex_);
    for (const std::uint32_t record : records) {
      segment.erasures.add(record);
      units.insert(segment.erasures.unit_of(record));
    }
    memory = AlignedBuffer(units.size() * kUnit);
    if (memory.data() == nullptr) return {Code::kResourceExhausted, segment.file.path + ": no memory to erase"};
    std::uint64_t at = 0;
    for (const std::uint64_t unit : units) {
      segment.erasures.copy_unit(unit, memory.span().subspan(at, kUnit));
      at += kUnit;
    }
  }
  FileIo io(context_.queues, deadline);
  std::uint64_t at = 0;
  for (const std::uint64_t unit : units) {
    KVF_RETURN_IF_ERROR(io.write(segment.file, (unit + 1) * kUnit, memory.span().subspan(at, kUnit)));
    at += kUnit;
  }
  context_.account.written += memory.size();
  return context_.options.sync == SsdSync::kEveryCommit ? io.sync(segment.file) : Status();
}

}  // namespace kvferry::store::log
