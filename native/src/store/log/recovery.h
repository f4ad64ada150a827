// Opening: is the directory fit, and what is in it?
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>

#include "store/log/segment_index.h"
#include "store/log/segment_table.h"

namespace kvferry::store::log {

// Makes the directory if it is missing.
Status prepare_directory(const std::string& directory);

// Writes, reads and compares; falls back to the page cache where direct access is refused after all. How the log reads
// and writes: "direct (ext4), ...".
Result<std::string> probe(LogContext& context);

class Recovery {
 public:
  Recovery(LogContext& context, SegmentTable& table, const Log::Recovered& recovered)
      : context_(context), table_(table), recovered_(recovered) {}

  // kUnsupported: a file of another format version. What is damaged is dropped.
  Status run();

 private:
  Status take_file(std::uint32_t number);
  Status take_segment(LogFile file, const SegmentHeader& header);
  bool take_entry(const std::shared_ptr<Segment>& segment, const RecordEntry& entry, bool may_be_torn);
  bool is_whole(const std::shared_ptr<Segment>& segment, const RecordEntry& entry);
  Status drop_file(const std::string& path, const Status& why);

  LogContext& context_;
  SegmentTable& table_;
  const Log::Recovered& recovered_;
  std::unordered_set<ObjectId> seen_;
  std::vector<std::uint32_t> outdated_;  // of the segment at hand: a later record of the same object is there
  std::uint64_t next_sequence_ = 1;
};

}  // namespace kvferry::store::log
