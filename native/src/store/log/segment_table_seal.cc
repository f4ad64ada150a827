// How a segment that takes no more is sealed: a footer that spares a later start the walk over its groups.
#include <algorithm>
#include <utility>

#include "base/crc32c.h"
#include "base/deadline.h"
#include "store/log/segment_table.h"

namespace kvferry::store::log {

void SegmentTable::retire_active() {
  if (!active_) return;
  active_->state = Segment::State::kClosing;
  ++sealing_;
  if (active_->in_flight.empty()) queue_seal(active_);
  active_.reset();
  active_is_compactions_ = false;
}

void SegmentTable::queue_seal(const std::shared_ptr<Segment>& segment) {
  const bool known = std::find(to_seal_.begin(), to_seal_.end(), segment) != to_seal_.end();
  if (!known) to_seal_.push_back(segment);
  work_.notify_all();
  changed_.notify_all();
}

void SegmentTable::seal_one(Lock& lock) {
  std::shared_ptr<Segment> segment = std::move(to_seal_.back());
  to_seal_.pop_back();
  lock.unlock();
  seal(segment);
  segment.reset();  // if it was empty its space is free by now
  lock.lock();
  --sealing_;
  changed_.notify_all();
  work_.notify_all();
}

void SegmentTable::seal(const std::shared_ptr<Segment>& segment) {
  Bytes footer;
  std::uint32_t entries = 0, next_record = 0;
  bool empty = false;
  {
    const std::lock_guard lock(mutex_);
    footer = std::move(segment->footer);
    segment->footer = {};
    entries = segment->footer_entries;
    next_record = static_cast<std::uint32_t>(segment->slots.size());
    empty = segment->live_records == 0;
  }
  const Status written = empty ? Status() : write_footer(*segment, footer, entries, next_record);
  if (!written.ok()) set_trouble(written);
  bool remove = false;
  {
    const std::lock_guard lock(mutex_);
    segment->unfit = !written.ok();
    segment->measure();
    segment->state = Segment::State::kSealed;
    remove = take_out_if_empty(segment);
  }
  if (remove) {
    const Status removed = remove_file(segment);
    if (!removed.ok()) set_trouble(removed);
  }
}

Status SegmentTable::write_footer(Segment& segment, const Bytes& footer, std::uint32_t entries,
                                  std::uint32_t next_record) {
  AlignedBuffer memory(footer.size() + Trailer::kBytes);
  if (memory.data() == nullptr) return {Code::kResourceExhausted, segment.file.path + ": no memory for its footer"};
  Trailer trailer;
  trailer.salt = segment.header.salt;
  trailer.footer_offset = segment.tail;
  trailer.footer_bytes = footer.size();
  trailer.entries = entries;
  trailer.footer_sum = crc32c(footer);
  trailer.next_record = next_record;
  const Bytes last = trailer.encode();
  std::copy(footer.begin(), footer.end(), memory.data());
  std::copy(last.begin(), last.end(), memory.data() + memory.size() - last.size());
  FileIo io(context_.queues, deadline_in(kBackgroundPatience));
  Status done = io.write(segment.file, segment.tail, memory.span());
  context_.account.written += memory.size();
  if (done.ok() && context_.options.sync != SsdSync::kNone) done = io.sync(segment.file);
  // Only now is the trailer at the end of the file, and the file sealed. Without it, cut off what was never used.
  const std::uint64_t end = segment.tail + (done.ok() ? memory.size() : 0);
  const Status cut = context_.disk->truncate(segment.file, end);
  return done.ok() ? cut : done;
}

bool SegmentTable::take_out_if_empty(const std::shared_ptr<Segment>& segment) {
  if (segment->state != Segment::State::kSealed || segment->live_records != 0 || segment->compacting) return false;
  return segments_.erase(segment->header.number) != 0;
}

// Its new name takes it out of the log; whoever still reads it may go on.
Status SegmentTable::remove_file(const std::shared_ptr<Segment>& segment) {
  const std::string spare = context_.path(spare_name(segment->header.number));
  KVF_RETURN_IF_ERROR(context_.disk->rename(segment->file.path, spare));
  segment->leave(spare);
  return {};
}

}  // namespace kvferry::store::log
