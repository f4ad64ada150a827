// The segments of one log: who writes where, which records live, what is full and what is empty. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "store/log/file_io.h"
#include "store/log/group_writer.h"
#include "store/log/record_reader.h"
#include "store/log/segment.h"

namespace kvferry::store::log {

// What the parts of one log share.
struct LogContext {
  explicit LogContext(LogOptions options_in)
      : options(std::move(options_in)),
        disk(options.disk ? options.disk : real_disk(options.io_uring)),
        queues(disk),
        spares(disk, queues, account) {}
  std::string path(std::string_view name) const { return options.directory + "/" + std::string(name); }

  LogOptions options;
  const std::shared_ptr<Disk> disk;
  QueuePool queues;
  Account account;
  Spares spares;
  std::set<std::uint32_t> foreign;   // segment numbers whose names somebody else's files have
  bool direct = true;                // as the probe found it
  std::uint64_t segment_length = 0;  // of files that hold several objects
};

inline constexpr milliseconds kBackgroundPatience{60000};  // for one request of our own

// Keeps a segment's records where they are. Movable.
class SegmentHold {
 public:
  SegmentHold() = default;
  SegmentHold(std::mutex& mutex, std::shared_ptr<Segment> segment) : mutex_(&mutex), segment_(std::move(segment)) {}
  SegmentHold(SegmentHold&& other) noexcept = default;
  SegmentHold& operator=(SegmentHold&&) = delete;
  ~SegmentHold() {
    if (!segment_) return;
    const std::lock_guard lock(*mutex_);
    --segment_->holds;
  }

 private:
  std::mutex* mutex_ = nullptr;
  std::shared_ptr<Segment> segment_;
};

struct Reservation {  // a place for one group
  std::shared_ptr<Segment> segment;
  SegmentHold hold;
  GroupPlace place;
  std::uint64_t bytes = 0, index_bytes = 0;
  std::uint32_t records = 0;
};

enum class Writer : std::uint8_t { kCaller, kCompaction };

class SegmentTable {
 public:
  explicit SegmentTable(LogContext& context) : context_(context) {}

  // Appending. kResourceExhausted: full. Each reservation is settled or given up.
  Result<Reservation> reserve(const GroupWriter& group, Writer writer, Deadline deadline);
  void settle(const Reservation& reservation, const std::vector<RecordEntry>& entries);
  void give_up(const Reservation& reservation, const Status& why);

  // A read of what is there, to be done by RecordReader. kStale, kOutOfRange.
  Result<ReadItem> locate(const LogRead& read) const;
  std::vector<Status> erase(std::span<const LogErase> erases, Deadline deadline);
  std::vector<LogErase> cheapest_to_erase() const;
  void count(LogUsage* usage) const;
  std::uint64_t largest_object() const;

  // Opening.
  std::shared_ptr<Segment> adopt(LogFile file, const SegmentHeader& header);  // not in the table yet
  void insert(const std::shared_ptr<Segment>& segment);
  void start_at(std::uint32_t number, std::uint64_t sequence);  // what the next ones get
  Status remove_file(const std::shared_ptr<Segment>& segment);  // of one that is not in the table: spare from now on
  // Their bits on disk; states stay as they are.
  Status write_erasures(Segment& segment, std::span<const std::uint32_t> records, Deadline deadline);

  // The background thread's.
  struct Work {
    std::shared_ptr<Segment> compact;
    bool stop = false;
  };
  Work wait_for_work();
  void work_is_done();
  void seal(const std::shared_ptr<Segment>& segment);
  // Which are live: from now on to erase one of these erases its copy, too.
  std::vector<bool> begin_moves(std::span<const LogPlace> from, std::span<const LogPlace> to);
  std::vector<bool> still_live(std::span<const LogPlace> places) const;
  void end_moves(std::span<const LogPlace> from, bool moved);  // moved: they are dead at their old places
  void erase_copies(const std::vector<LogPlace>& places, Deadline deadline);
  void end_compaction(const std::shared_ptr<Segment>& segment, const Status& outcome);
  bool closing() const;
  bool pause(Deadline until);  // false: closing

  void close();  // no more reservations; the background thread ends when all is sealed
  Status trouble() const;
  void set_trouble(const Status& status);

 private:
  struct Dead {  // of one segment, being erased
    std::vector<std::uint32_t> records;
    std::vector<LogPlace> forwards;  // where compaction is copying them to
  };
  using Lock = std::unique_lock<std::mutex>;

  static std::uint64_t key_of(const LogPlace& place) { return (std::uint64_t{place.segment} << 32) | place.record; }
  Status closed_status() const;
  bool fits(const Segment& segment, const GroupWriter& group) const;
  Reservation take(const GroupWriter& group);
  std::uint64_t length_for(const GroupWriter& group) const;
  std::uint64_t reserve_from(Writer writer) const;
  bool has_room(std::uint64_t length, Writer writer) const;
  Status await_room(Lock& lock, std::uint64_t length, Writer writer, Deadline deadline);
  Status roll(Lock& lock, const GroupWriter& group, Writer writer);
  Result<std::shared_ptr<Segment>> create(std::uint32_t number, std::uint64_t length, std::uint64_t erasure_bytes);
  Result<LogFile> make_file(std::uint64_t length, const std::string& path);
  Status write_start(Segment& segment, const std::string& path);
  void retire_active();
  void seal_one(Lock& lock);
  bool drop_spare(Lock& lock);
  void queue_seal(const std::shared_ptr<Segment>& segment);
  std::shared_ptr<Segment> find(std::uint32_t number) const;  // this and the next with the mutex held
  bool is_live(const LogPlace& place) const;
  std::shared_ptr<Segment> compaction_candidate() const;
  bool wants_compaction() const;
  void erase_in(std::uint32_t number, std::span<const LogErase> erases, const std::vector<std::size_t>& which,
                std::vector<Status>* statuses, Deadline deadline);
  Dead mark_dead(Segment& segment, std::span<const LogErase> erases, const std::vector<std::size_t>& which,
                 std::vector<Status>* statuses);
  Status persist_dead(const std::shared_ptr<Segment>& segment, std::span<const std::uint32_t> records,
                      Deadline deadline);
  bool take_out_if_empty(const std::shared_ptr<Segment>& segment);
  Status write_footer(Segment& segment, const Bytes& footer, std::uint32_t entries, std::uint32_t next_record);

  LogContext& context_;
  mutable std::mutex mutex_;         // guards what follows, and the segments
  std::condition_variable changed_;  // for those who wait for a segment or for room
  std::condition_variable work_;     // for the background thread
  std::map<std::uint32_t, std::shared_ptr<Segment>> segments_;
  std::shared_ptr<Segment> active_;
  bool active_is_compactions_ = false;  // made out of the reserve: for callers once that is there again
  bool rolling_ = false, closed_ = false, compacting_ = false;
  std::vector<std::shared_ptr<Segment>> to_seal_;
  std::uint32_t sealing_ = 0;  // segments that are closing, in to_seal_ once nobody writes to them
  std::uint32_t waiting_for_room_ = 0;
  Clock::time_point no_compaction_until_{};
  std::uint32_t next_number_ = 1;
  std::uint64_t next_sequence_ = 1;
  std::unordered_map<std::uint64_t, LogPlace> moving_;
  Status trouble_;
};

}  // namespace kvferry::store::log
