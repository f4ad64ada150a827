// Reads ranges of payloads and checks them: whole chunks straight into the caller's memory where that is aligned,
// through aligned buffers where it is not. Used by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "io/request_pump.h"
#include "store/log/queue_pool.h"
#include "store/log/segment.h"

namespace kvferry::store::log {

struct ReadItem {
  std::shared_ptr<Segment> segment;  // keeps the file open
  std::uint64_t payload = 0;         // where it begins in the file
  std::uint64_t bytes = 0;           // that it has
  std::uint64_t offset = 0;          // where the wanted range begins in it; not empty
  std::span<std::byte> target;
  std::uint64_t first_chunk = 0;    // that the range touches
  std::vector<std::uint32_t> sums;  // of the chunks from that one on
  Status status;
};

class RecordReader final : private IoPartHandler {
 public:
  // Sets the status of each item: OK, kDataCorrupt, or why it could not be read.
  static void read(std::span<ReadItem> items, QueuePool& queues, Deadline deadline);

 private:
  explicit RecordReader(std::span<ReadItem> items) : items_(items) {}
  void start_all(RequestPump* pump);
  void start_item(std::uint64_t index, RequestPump* pump);
  std::uint64_t start_direct(std::uint64_t index, std::uint64_t chunk, RequestPump* pump);
  std::uint64_t start_bounced(std::uint64_t index, std::uint64_t chunk, RequestPump* pump);
  void part_ended(const IoPart& part, const Status& status) override;
  Status check(const ReadItem& item, std::uint64_t chunk, ByteView data) const;

  std::span<ReadItem> items_;
};

}  // namespace kvferry::store::log
