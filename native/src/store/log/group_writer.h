// Lays records out as one group and writes it: small payloads packed behind the entries, larger ones straight from the
// caller's memory where that is aligned, gathered into aligned buffers where it is not. Used by one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "io/aligned_buffer.h"
#include "io/request_pump.h"
#include "store/log/format.h"
#include "store/log/log.h"
#include "store/log/queue_pool.h"

namespace kvferry::store::log {

// Where the next group of a segment goes.
struct GroupPlace {
  std::uint64_t salt = 0;
  std::uint64_t offset = 0;
  std::uint64_t settled_to = 0;
  std::uint64_t first_sequence = 0;
  std::uint32_t first_record = 0;
};

class PieceCursor;

// CRC-32C of each chunk of a payload that comes in pieces.
class ChunkSums {
 public:
  explicit ChunkSums(std::vector<std::uint32_t>* sums) : sums_(sums) {}
  void add(ByteView bytes);
  void finish();

 private:
  std::vector<std::uint32_t>* sums_;
  std::uint64_t in_chunk_ = 0;
  std::uint32_t sum_ = 0;
};

class GroupWriter final : private IoPartHandler {
 public:
  static constexpr std::uint64_t kPackBelow = 16 << 10;        // payloads that are no whole units, up to here
  static constexpr std::uint64_t kCopyGroupBelow = 128 << 10;  // a small group is one request

  void add(const LogWrite& write);
  std::size_t records() const { return records_.size(); }
  std::uint64_t bytes() const { return whole_units(head_bytes()) + aligned_bytes_; }  // of the group on disk
  std::uint64_t index_bytes() const { return index_bytes_; }
  std::uint64_t payload_bytes() const { return payload_bytes_; }

  // Nothing of the caller's memory is in use when it returns. Fails with the first error of any request.
  Status write(const LogFile& file, const GroupPlace& place, bool sync, QueuePool& queues, Deadline deadline);
  std::vector<RecordEntry> take_entries() { return std::move(entries_); }  // after write()

 private:
  struct Record {
    const LogWrite* write = nullptr;
    bool packed = false;
    std::uint64_t place = 0;  // of the payload: among the packed, or among the aligned
  };
  std::uint64_t head_bytes() const { return GroupHead::kBytes + index_bytes_ + packed_bytes_; }
  void place_entries(const GroupPlace& place);
  void copy_into(const Record& record, RecordEntry* entry, std::byte* target) const;
  void collect(const LogFile& file, const Record& record, RecordEntry* entry, RequestPump* pump);
  void flush(RequestPump* pump);
  void write_payload(const LogFile& file, const Record& record, RecordEntry* entry, RequestPump* pump);
  std::uint64_t gather(PieceCursor* cursor, std::uint64_t bytes, RequestPump* pump, IoPart* part);
  void start(const IoPart& part, RequestPump* pump);
  void write_head(const LogFile& file, const GroupPlace& place, RequestPump* pump);
  void part_ended(const IoPart& part, const Status& status) override;

  std::vector<Record> records_;
  std::vector<RecordEntry> entries_;
  std::uint64_t index_bytes_ = 0, packed_bytes_ = 0, aligned_bytes_ = 0, payload_bytes_ = 0;
  QueuePool* queues_ = nullptr;  // while it is written
  AlignedBuffer head_;
  IoPart collected_;             // not started yet
  std::uint64_t not_begun_ = 0;  // bytes that were started since the last begin()
  Status status_;
};

}  // namespace kvferry::store::log
