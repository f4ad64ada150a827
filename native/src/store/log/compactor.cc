#include "store/log/compactor.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/deadline.h"

namespace kvferry::store::log {
namespace {

constexpr std::uint64_t kBatchBytes = 8 << 20;
constexpr std::uint64_t kMostMoved = 256 << 20;  // larger records stay where they are until they are erased
constexpr std::size_t kBatchRecords = 1024;

Status stopped() { return {Code::kCancelled, "compaction: the log is being closed"}; }

}  // namespace

Status Compactor::empty(const std::shared_ptr<Segment>& segment) {
  SegmentIndex index = read_segment_index(segment->file, segment->header, context_.queues);
  const std::uint64_t most = std::min(kBatchBytes, context_.segment_length / 4);
  Batch batch;
  for (RecordEntry& entry : index.entries) {
    const LogPlace place{segment->header.number, entry.record, entry.bytes};
    if (entry.bytes > kMostMoved || !table_.still_live(std::array{place}).front()) continue;
    batch.items.push_back({std::move(entry), place, batch.bytes});
    batch.bytes += whole_units(place.bytes);
    if (batch.bytes < most && batch.items.size() < kBatchRecords) continue;
    KVF_RETURN_IF_ERROR(move_batch(segment, std::exchange(batch, Batch())));
  }
  return batch.items.empty() ? Status() : move_batch(segment, std::move(batch));
}

Status Compactor::move_batch(const std::shared_ptr<Segment>& segment, Batch batch) {
  const std::uint64_t before = context_.account.written;
  KVF_RETURN_IF_ERROR(load(segment, &batch));
  if (batch.items.empty()) return {};
  for (const Item& item : batch.items) batch.from.push_back(item.from);
  Status moved = write_copies(&batch);
  if (moved.ok()) {
    moved = hand_over(*segment, batch);
    if (!moved.ok()) table_.erase_copies(batch.to, deadline_in(kBackgroundPatience));
  }
  table_.end_moves(batch.from, moved.ok());
  KVF_RETURN_IF_ERROR(moved);
  context_.account.compacted += context_.account.written - before;
  return pace(2 * batch.bytes) ? Status() : stopped();
}

// What turns out to be damaged is erased instead: it would be absent wherever it were.
Status Compactor::load(const std::shared_ptr<Segment>& segment, Batch* batch) {
  batch->memory = AlignedBuffer(batch->bytes);
  if (batch->memory.data() == nullptr) return {Code::kResourceExhausted, "compaction: no memory"};
  std::vector<ReadItem> reads;
  for (const Item& item : batch->items) {
    ReadItem read;
    read.segment = segment;
    read.payload = item.entry.offset;
    read.bytes = item.entry.bytes;
    read.target = batch->memory.span().subspan(item.at, item.entry.bytes);
    read.sums = item.entry.sums;
    reads.push_back(std::move(read));
  }
  RecordReader::read(reads, context_.queues, deadline_in(kBackgroundPatience));
  std::vector<LogErase> damaged;
  std::vector<Item> good;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (reads[i].status.ok()) {
      good.push_back(std::move(batch->items[i]));
      continue;
    }
    if (reads[i].status.code() != Code::kDataCorrupt) return reads[i].status;
    context_.account.corrupt_reads.found(reads[i].status);
    table_.set_trouble(reads[i].status);
    damaged.push_back({batch->items[i].entry.id, batch->items[i].from});
  }
  batch->items = std::move(good);
  for (const Status& status : table_.erase(damaged, deadline_in(kBackgroundPatience))) {
    if (!status.ok() && status.code() != Code::kStale) return status;
  }
  return {};
}

Status Compactor::write_copies(Batch* batch) {
  std::vector<LogWrite> writes(batch->items.size());
  std::vector<std::span<const std::byte>> pieces(batch->items.size());
  GroupWriter group;
  for (std::size_t i = 0; i < writes.size(); ++i) {
    const Item& item = batch->items[i];
    const RecordEntry& entry = item.entry;
    pieces[i] = batch->memory.span().subspan(item.at, entry.bytes);
    writes[i].record = {entry.id, entry.key, entry.bytes, entry.digest, entry.attributes};
    writes[i].pieces = std::span(&pieces[i], 1);
    group.add(writes[i]);
  }
  if (table_.closing()) return stopped();
  KVF_ASSIGN_OR_RETURN(const Reservation place,
                       table_.reserve(group, Writer::kCompaction, deadline_in(kBackgroundPatience)));
  for (std::uint32_t i = 0; i < place.records; ++i) {
    batch->to.push_back({place.segment->header.number, place.place.first_record + i, batch->items[i].entry.bytes});
  }
  const std::vector<bool> live = table_.begin_moves(batch->from, batch->to);
  std::vector<LogPlace> late;  // erased since they were read: their copies are dead before they are written
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (!live[i]) late.push_back(batch->to[i]);
  }
  table_.erase_copies(late, deadline_in(kBackgroundPatience));
  const bool sync = context_.options.sync != SsdSync::kNone;
  const Status written =
      group.write(place.segment->file, place.place, sync, context_.queues, deadline_in(kBackgroundPatience));
  context_.account.written += place.bytes;
  if (!written.ok()) {
    table_.give_up(place, written);
    return written;
  }
  table_.settle(place, group.take_entries());
  return {};
}

// The old ones are erased on disk before anybody learns of the new ones: erasing a new one must not bring back an old.
Status Compactor::hand_over(Segment& segment, const Batch& batch) {
  std::vector<std::uint32_t> records;
  for (const LogPlace& place : batch.from) records.push_back(place.record);
  KVF_RETURN_IF_ERROR(table_.write_erasures(segment, records, deadline_in(kBackgroundPatience)));
  const std::vector<bool> live = table_.still_live(batch.from);
  std::vector<LogPlace> unwanted;
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (!live[i] || !context_.options.moved) continue;  // whoever erased it erased the copy, too
    if (!context_.options.moved(batch.items[i].entry.id, batch.from[i], batch.to[i])) unwanted.push_back(batch.to[i]);
  }
  table_.erase_copies(unwanted, deadline_in(kBackgroundPatience));
  return {};
}

bool Compactor::pace(std::uint64_t bytes) {
  const std::uint64_t rate = context_.options.compact_bytes_per_s;
  if (rate == 0) return !table_.closing();
  const std::chrono::duration<double> share(static_cast<double>(bytes) / static_cast<double>(rate));
  next_ = std::max(next_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(share);
  return table_.pause(next_);
}

}  // namespace kvferry::store::log
