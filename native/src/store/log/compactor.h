// Moves what lives in a segment elsewhere, so that its file can go. Used by the background thread.
#pragma once

#include <memory>
#include <vector>

#include "store/log/segment_index.h"
#include "store/log/segment_table.h"

namespace kvferry::store::log {

class Compactor {
 public:
  Compactor(LogContext& context, SegmentTable& table) : context_(context), table_(table) {}

  // Fails where the first group of records could not be moved; those before are.
  Status empty(const std::shared_ptr<Segment>& segment);

 private:
  struct Item {
    RecordEntry entry;
    LogPlace from;
    std::uint64_t at = 0;  // of its payload in the batch's memory
  };
  struct Batch {  // records that move together
    std::vector<Item> items;
    std::uint64_t bytes = 0;  // of payloads, each in whole units
    AlignedBuffer memory;
    std::vector<LogPlace> from, to;
  };
  Status move_batch(const std::shared_ptr<Segment>& segment, Batch batch);
  Status load(const std::shared_ptr<Segment>& segment, Batch* batch);
  Status write_copies(Batch* batch);
  Status hand_over(Segment& segment, const Batch& batch);
  bool pace(std::uint64_t bytes);

  LogContext& context_;
  SegmentTable& table_;
  Clock::time_point next_{};
};

}  // namespace kvferry::store::log
