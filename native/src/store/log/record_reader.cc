#include "store/log/record_reader.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/crc32c.h"

namespace kvferry::store::log {
namespace {

struct Range {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t length() const { return end - begin; }
};

Range chunk_range(const ReadItem& item, std::uint64_t chunk) {
  return {chunk * kChunkBytes, std::min(item.bytes, (chunk + 1) * kChunkBytes)};
}

std::uint64_t chunks_end(const ReadItem& item) { return item.first_chunk + item.sums.size(); }

// Whether the chunk can be read to where the caller wants it, by itself.
bool is_direct(const ReadItem& item, std::uint64_t chunk) {
  const Range range = chunk_range(item, chunk);
  if (range.begin < item.offset || range.end > item.offset + item.target.size()) return false;
  const LogFile& file = item.segment->file;
  if (!file.direct) return true;
  const std::byte* const target = item.target.data() + (range.begin - item.offset);
  return item.payload % kUnit == 0 && range.length() % kUnit == 0 &&
         reinterpret_cast<std::uintptr_t>(target) % file.memory_alignment == 0;
}

}  // namespace

void RecordReader::read(std::span<ReadItem> items, QueuePool& queues, Deadline deadline) {
  Result<QueuePool::Lease> lease = queues.take(deadline);
  if (!lease.ok()) {
    for (ReadItem& item : items) item.status = lease.status();
    return;
  }
  RecordReader reader(items);
  RequestPump pump(lease->queue(), lease->bounce(), deadline, reader);
  reader.start_all(&pump);
  pump.finish();
}

void RecordReader::start_all(RequestPump* pump) {
  for (std::uint64_t index = 0; index < items_.size(); ++index) start_item(index, pump);
}

void RecordReader::start_item(std::uint64_t index, RequestPump* pump) {
  const ReadItem& item = items_[index];
  std::uint64_t chunk = item.first_chunk;
  while (chunk < chunks_end(item) && item.status.ok()) {
    chunk += is_direct(item, chunk) ? start_direct(index, chunk, pump) : start_bounced(index, chunk, pump);
  }
}

// The count of chunks that one request covers.
std::uint64_t RecordReader::start_direct(std::uint64_t index, std::uint64_t chunk, RequestPump* pump) {
  const ReadItem& item = items_[index];
  std::uint64_t count = 1;
  while (count < kRequestBytes / kChunkBytes && chunk + count < chunks_end(item) && is_direct(item, chunk + count)) {
    ++count;
  }
  const std::uint64_t begin = chunk_range(item, chunk).begin;
  const std::uint64_t end = chunk_range(item, chunk + count - 1).end;
  pump->start({IoRequest::Kind::kRead, item.segment->file.fd.get(), item.target.data() + (begin - item.offset),
               static_cast<std::uint32_t>(end - begin), item.payload + begin, BounceBuffers::kNone, index, chunk,
               count});
  return count;
}

std::uint64_t RecordReader::start_bounced(std::uint64_t index, std::uint64_t chunk, RequestPump* pump) {
  ReadItem& item = items_[index];
  const std::uint32_t buffer = pump->take_bounce();
  if (buffer == BounceBuffers::kNone) {
    item.status = {Code::kResourceExhausted, item.segment->file.path + ": no memory for aligned buffers"};
    return 1;
  }
  const std::uint64_t from = (item.payload + chunk * kChunkBytes) / kUnit * kUnit;
  std::uint64_t count = 0, to = from;
  while (chunk + count < chunks_end(item) && !(count > 0 && is_direct(item, chunk + count))) {
    const std::uint64_t end = whole_units(item.payload + chunk_range(item, chunk + count).end);
    if (end - from > kBounceBytes) break;
    to = end;
    ++count;
  }
  pump->start({IoRequest::Kind::kRead, item.segment->file.fd.get(), pump->bounce(buffer),
               static_cast<std::uint32_t>(to - from), from, buffer, index, chunk, count});
  return count;
}

void RecordReader::part_ended(const IoPart& part, const Status& status) {
  ReadItem& item = items_[part.item];
  if (!item.status.ok()) return;
  if (!status.ok()) {
    // A file that is shorter than it was has lost the bytes: absent, not "try again".
    const Code code = status.code() == Code::kOutOfRange ? Code::kDataCorrupt : status.code();
    item.status = Status(code, status.message()).with_context(item.segment->file.path);
    return;
  }
  const bool bounced = part.bounce != BounceBuffers::kNone;
  const std::uint64_t begin = part.first * kChunkBytes;
  const std::uint64_t length = chunk_range(item, part.first + part.count - 1).end - begin;
  const ByteView data(part.data + (bounced ? item.payload + begin - part.offset : 0), length);
  item.status = check(item, part.first, data);
  if (!item.status.ok() || !bounced) return;
  const std::uint64_t from = std::max(begin, item.offset);
  const std::uint64_t to = std::min(begin + length, item.offset + item.target.size());
  std::memcpy(item.target.data() + (from - item.offset), data.data() + (from - begin), to - from);
}

Status RecordReader::check(const ReadItem& item, std::uint64_t chunk, ByteView data) const {
  for (std::uint64_t at = 0; at < data.size(); at += kChunkBytes, ++chunk) {
    const ByteView bytes = data.subspan(at, std::min<std::uint64_t>(kChunkBytes, data.size() - at));
    if (crc32c(bytes) == item.sums[chunk - item.first_chunk]) continue;
    return {Code::kDataCorrupt, item.segment->file.path + ": the checksum of " + std::to_string(bytes.size()) +
                                    " bytes at offset " + std::to_string(item.payload + chunk * kChunkBytes) +
                                    " is wrong"};
  }
  return {};
}

}  // namespace kvferry::store::log
