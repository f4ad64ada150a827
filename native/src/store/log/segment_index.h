// What a file of the log says about itself: its header, which records it has, which are erased. Reads indexes, not
// payloads: the footer of a sealed file, the heads of its groups otherwise.
#pragma once

#include <cstdint>
#include <vector>

#include "store/log/disk.h"
#include "store/log/erasures.h"
#include "store/log/format.h"
#include "store/log/queue_pool.h"

namespace kvferry::store::log {

struct SegmentIndex {
  std::vector<RecordEntry> entries;  // in the order of their numbers
  std::uint32_t next_record = 0;     // larger than all numbers
  std::uint64_t tail = 0;            // where the groups end
  std::uint64_t settled_to = 0;      // payloads from there on may be torn
  bool sealed = false;
};

// kProtocolError: none of ours; kDataCorrupt: it cannot be used; kUnsupported: of another version; or why it cannot be
// read. kNotFound: nothing was ever written to it.
Result<SegmentHeader> read_segment_header(const LogFile& file, QueuePool& queues);
Result<Erasures> read_erasures(const LogFile& file, const SegmentHeader& header, QueuePool& queues);
// What can be found, whatever is damaged.
SegmentIndex read_segment_index(const LogFile& file, const SegmentHeader& header, QueuePool& queues);

}  // namespace kvferry::store::log
