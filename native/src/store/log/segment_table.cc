#include "store/log/segment_table.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"
#include "base/log.h"

namespace kvferry::store::log {
namespace {

constexpr milliseconds kCompactionPause{5000};  // after one that failed
constexpr milliseconds kMoment{50};
constexpr std::uint64_t kMostSpares = 4, kSegmentsPerSpare = 16;

}  // namespace

Status SegmentTable::closed_status() const {
  return {Code::kUnavailable, "log " + context_.options.directory + " is closed"};
}

// ---- looking up

std::shared_ptr<Segment> SegmentTable::find(std::uint32_t number) const {
  const auto known = segments_.find(number);
  return known == segments_.end() ? nullptr : known->second;
}

Result<ReadItem> SegmentTable::locate(const LogRead& read) const {
  const std::lock_guard lock(mutex_);
  if (closed_) return closed_status();
  const auto segment = find(read.place.segment);
  const std::uint32_t record = read.place.record;
  if (!segment || record >= segment->slots.size() || segment->slots[record].state != RecordState::kLive ||
      segment->slots[record].id != read.id) {
    return {Code::kStale, "log: object " + read.id.to_string() + " is not (any more) at segment " +
                              std::to_string(read.place.segment) + ", record " + std::to_string(record)};
  }
  const RecordSlot& slot = segment->slots[record];
  if (read.offset > slot.bytes || read.target.size() > slot.bytes - read.offset) {
    return {Code::kOutOfRange, "log: object " + read.id.to_string() + " has " + std::to_string(slot.bytes) +
                                   " bytes, asked for " + std::to_string(read.target.size()) + " at offset " +
                                   std::to_string(read.offset)};
  }
  ReadItem item;
  item.segment = segment;
  item.payload = slot.offset;
  item.bytes = slot.bytes;
  item.offset = read.offset;
  item.target = read.target;
  if (read.target.empty()) return item;
  item.first_chunk = read.offset / kChunkBytes;
  const std::uint64_t end = chunks_of(read.offset + read.target.size());
  const auto sums = segment->sums.begin() + slot.first_sum;
  item.sums.assign(sums + static_cast<std::ptrdiff_t>(item.first_chunk), sums + static_cast<std::ptrdiff_t>(end));
  return item;
}

std::vector<LogErase> SegmentTable::cheapest_to_erase() const {
  const std::lock_guard lock(mutex_);
  const Segment* best = nullptr;
  for (const auto& [number, segment] : segments_) {
    if (segment->state != Segment::State::kSealed || segment->live_records == 0 || segment->compacting) continue;
    if (best == nullptr || segment->live_bytes < best->live_bytes) best = segment.get();
  }
  std::vector<LogErase> out;
  for (std::uint32_t record = 0; best != nullptr && record < best->slots.size(); ++record) {
    const RecordSlot& slot = best->slots[record];
    if (slot.state == RecordState::kLive) out.push_back({slot.id, best->place(record)});
  }
  return out;
}

void SegmentTable::count(LogUsage* usage) const {
  const std::lock_guard lock(mutex_);
  usage->segments = segments_.size();
  for (const auto& [number, segment] : segments_) {
    if (segment->state != Segment::State::kSealed) segment->measure();
    usage->live_bytes += segment->live_bytes;
    usage->live_records += segment->live_records;
  }
}

// ---- opening and closing

std::shared_ptr<Segment> SegmentTable::adopt(LogFile file, const SegmentHeader& header) {
  return std::make_shared<Segment>(std::move(file), header, context_.queues, context_.spares, context_.account);
}

void SegmentTable::insert(const std::shared_ptr<Segment>& segment) {
  const std::lock_guard lock(mutex_);
  segments_.emplace(segment->header.number, segment);
}

void SegmentTable::start_at(std::uint32_t number, std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  next_number_ = number;
  next_sequence_ = sequence;
}

void SegmentTable::close() {
  const std::lock_guard lock(mutex_);
  if (!closed_) retire_active();
  closed_ = true;
  changed_.notify_all();
  work_.notify_all();
}

bool SegmentTable::closing() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

Status SegmentTable::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

void SegmentTable::set_trouble(const Status& status) {
  log_event(LogLevel::kWarning, "log_trouble", {{"directory", context_.options.directory}, {"why", status}});
  const std::lock_guard lock(mutex_);
  trouble_ = status;
}

// ---- the background thread

bool SegmentTable::wants_compaction() const {
  // With room for a few more segments nothing is gained by moving what may be erased tomorrow.
  return waiting_for_room_ > 0 || !has_room(2 * context_.segment_length, Writer::kCaller);
}

std::shared_ptr<Segment> SegmentTable::compaction_candidate() const {
  if (Clock::now() < no_compaction_until_) return nullptr;
  std::shared_ptr<Segment> best;
  double lowest = context_.options.compact_below;
  for (const auto& [number, segment] : segments_) {
    if (segment->state != Segment::State::kSealed || segment->unfit || segment->holds > 0) continue;
    const double share = segment->live_share();
    if (share >= lowest) continue;
    lowest = share;
    best = segment;
  }
  return best;
}

SegmentTable::Work SegmentTable::wait_for_work() {
  Lock lock(mutex_);
  for (;;) {
    if (!to_seal_.empty()) {
      seal_one(lock);
      continue;
    }
    Work work;
    if (closed_ && sealing_ == 0) {
      work.stop = true;
      return work;
    }
    if (!closed_ && wants_compaction()) work.compact = compaction_candidate();
    if (work.compact) {
      work.compact->compacting = true;
      compacting_ = true;
      return work;
    }
    if (drop_spare(lock)) continue;
    work_.wait_for(lock, context_.account.leaving > 0 ? kMoment : kCompactionPause);
  }
}

// False: there are no more than should be.
bool SegmentTable::drop_spare(Lock& lock) {
  const std::uint64_t segments = context_.options.capacity / context_.segment_length;
  const bool too_much = context_.account.disk_bytes > context_.options.capacity;
  const std::uint64_t keep = too_much ? 0 : std::clamp<std::uint64_t>(segments / kSegmentsPerSpare, 1, kMostSpares);
  lock.unlock();
  const bool dropped = context_.spares.drop_one(keep);
  lock.lock();
  return dropped;
}

// The segment was let go of before this, so that its space is free when the waiting ones look.
void SegmentTable::work_is_done() {
  const std::lock_guard lock(mutex_);
  compacting_ = false;
  changed_.notify_all();
}

std::vector<bool> SegmentTable::begin_moves(std::span<const LogPlace> from, std::span<const LogPlace> to) {
  const std::lock_guard lock(mutex_);
  std::vector<bool> live;
  for (std::size_t i = 0; i < from.size(); ++i) {
    live.push_back(is_live(from[i]));
    if (live.back()) moving_[key_of(from[i])] = to[i];
  }
  return live;
}

bool SegmentTable::is_live(const LogPlace& place) const {
  const auto segment = find(place.segment);
  return segment && place.record < segment->slots.size() && segment->slots[place.record].state == RecordState::kLive;
}

std::vector<bool> SegmentTable::still_live(std::span<const LogPlace> places) const {
  const std::lock_guard lock(mutex_);
  std::vector<bool> live;
  for (const LogPlace& place : places) live.push_back(is_live(place));
  return live;
}

void SegmentTable::end_moves(std::span<const LogPlace> from, bool moved) {
  const std::lock_guard lock(mutex_);
  for (const LogPlace& place : from) {
    moving_.erase(key_of(place));
    if (moved && is_live(place)) find(place.segment)->drop(place.record);
  }
}

void SegmentTable::end_compaction(const std::shared_ptr<Segment>& segment, const Status& outcome) {
  const bool failed = !outcome.ok() && outcome.code() != Code::kCancelled && !closing();
  if (failed) set_trouble(outcome);
  bool remove = false;
  {
    const std::lock_guard lock(mutex_);
    segment->compacting = false;
    if (failed) no_compaction_until_ = deadline_in(kCompactionPause);
    if (outcome.ok() && segment->live_records > 0) segment->unfit = true;  // what is left cannot be moved
    remove = take_out_if_empty(segment);
  }
  if (remove) {
    const Status removed = remove_file(segment);
    if (!removed.ok()) set_trouble(removed);
  }
}

bool SegmentTable::pause(Deadline until) {
  Lock lock(mutex_);
  while (!closed_ && !expired(until)) changed_.wait_until(lock, until);
  return !closed_;
}

}  // namespace kvferry::store::log
