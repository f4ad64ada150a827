// Counts the reads of objects by clients of other nodes, to find those that are worth a replica there. Bounded: it
// remembers the objects read lately, not all. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "kvferry/node_id.h"
#include "kvferry/object_id.h"
#include "kvferry/types.h"

namespace kvferry::store {

class HotReads {
 public:
  HotReads(std::uint32_t reads, milliseconds window) : reads_(reads), window_(window) {}

  // True: `reader`'s node has read it so often within the window that it should have a replica. Not again for a while.
  bool count(const ObjectId& id, const NodeId& reader, Clock::time_point now) {
    if (reads_ == 0 || reader.is_nil()) return false;
    const std::lock_guard lock(mutex_);
    if (counts_.size() >= kMost) counts_.clear();
    Count& count = counts_[id];
    if (count.reader != reader || now - count.since > window_) count = {reader, now, 0};
    if (++count.reads != reads_) return false;
    return true;
  }

 private:
  static constexpr std::size_t kMost = 8192;
  struct Count {
    NodeId reader;
    Clock::time_point since{};
    std::uint32_t reads = 0;
  };
  const std::uint32_t reads_;
  const milliseconds window_;
  std::mutex mutex_;
  std::unordered_map<ObjectId, Count> counts_;  // guarded by mutex_
};

}  // namespace kvferry::store
