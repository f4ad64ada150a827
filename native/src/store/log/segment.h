// One file of the log and what is known of the records in it. Guarded by the mutex of the table that it is in, except
// what is const and the file, which any thread may read and write at places that it owns.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "store/log/damage.h"
#include "store/log/erasures.h"
#include "store/log/format.h"
#include "store/log/log.h"
#include "store/log/queue_pool.h"
#include "store/log/spares.h"

namespace kvferry::store::log {

struct Account {  // of one log
  std::atomic<std::uint64_t> disk_bytes{0};
  std::atomic<std::uint64_t> spare_bytes{0};  // of these, of files that hold nothing and may be used again
  std::atomic<std::uint32_t> leaving{0};      // segments that are out of the table, but still read
  std::atomic<std::uint64_t> stored{0}, written{0}, compacted{0}, damaged_records{0};
  Damage corrupt_reads;
};

enum class RecordState : std::uint8_t { kDead, kPending, kLive };  // pending: its bytes are being written

struct RecordSlot {
  ObjectId id;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint32_t first_sum = 0;
  RecordState state = RecordState::kDead;
};
static_assert(sizeof(RecordSlot) == 40);

class Segment {
 public:
  enum class State : std::uint8_t { kOpen, kClosing, kSealed };

  // `spares` gets the file of one that was left with leave().
  Segment(LogFile opened, const SegmentHeader& header_in, QueuePool& queues, Spares& spares, Account& account);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  void add_live(const RecordEntry& entry);  // whose slot is there
  void add_dead(const RecordEntry& entry);
  void drop(std::uint32_t record);     // live or pending: dead now
  void leave(std::string spare_path);  // its file has that name by now and holds nothing any more
  void measure();                      // brings the account up to what the file takes on disk
  std::uint64_t settled_to() const { return in_flight.empty() ? tail : *in_flight.begin(); }
  std::uint64_t disk_bytes() const { return disk_bytes_; }
  double live_share() const;
  LogPlace place(std::uint32_t record) const { return {header.number, record, slots[record].bytes}; }

  LogFile file;  // const until the end
  const SegmentHeader header;

  State state = State::kOpen;
  std::vector<RecordSlot> slots;
  std::vector<std::uint32_t> sums;
  Erasures erasures;
  std::uint64_t tail = 0;             // where the next group goes
  std::set<std::uint64_t> in_flight;  // offsets of groups that are being written
  Bytes footer;                       // entries so far; empty once sealed
  std::uint64_t footer_reserved = 0;  // bytes that it will have with what is in flight
  std::uint32_t footer_entries = 0;
  std::uint64_t live_bytes = 0;
  std::uint64_t live_weight = 0, total_weight = 0;  // about the bytes on disk of what lives, and of all
  std::uint32_t live_records = 0;
  std::uint32_t holds = 0;                 // while there are any, nothing is moved away
  bool compacting = false, unfit = false;  // unfit: cannot be compacted, its entries are not readable

  std::mutex erase_mutex;  // held while erasure units are written; taken before the table's

 private:
  QueuePool& queues_;
  Spares& spares_;
  Account& account_;
  std::string spare_path_;  // empty: the file is a segment's
  std::uint64_t disk_bytes_ = 0;
};

}  // namespace kvferry::store::log
