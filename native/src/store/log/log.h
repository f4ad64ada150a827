// The SSD tier: an append-only log of objects in the files of one directory. What is appended is found again after any
// crash, what is read is checked, and what it uses is what its files take on disk. docs/disk-format.md has the format.
//
// Thread-safe; nothing throws. Calls move bytes in the calling thread, many requests at once, and come back when the
// kernel is done with the caller's memory, also at a deadline. A background thread seals full segments and compacts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/object_id.h"
#include "kvferry/status.h"
#include "kvferry/store.h"
#include "kvferry/types.h"

namespace kvferry::store {

namespace log {
class Disk;
}

struct LogRecord {
  ObjectId id;
  std::string_view key;
  std::uint64_t bytes = 0;
  ContentDigest digest;
  std::string_view attributes;  // the caller's, at most 8 KiB
};

struct LogPlace {  // where a record is; holds until it is erased or moved, in this process
  std::uint32_t segment = 0;
  std::uint32_t record = 0;
  std::uint64_t bytes = 0;
  bool operator==(const LogPlace&) const = default;
};

struct LogOptions {
  std::string directory;            // made if missing (mode 0700); of one log at a time
  std::uint64_t capacity = 0;       // bytes on disk at most, all told
  std::uint64_t segment_bytes = 0;  // 0: by the capacity, 256 MiB for 16 to 64 GiB; at most a quarter of it
  SsdSync sync = SsdSync::kNone;    // kNone survives the death of processes, the others that of the machine, too
  bool io_uring = true;
  bool direct = true;                                // past the page cache, where possible
  double compact_below = 0.75;                       // segments with a smaller live share may be compacted
  std::uint64_t compact_bytes_per_s = 256ull << 20;  // what compaction reads and writes at most; 0: no bound
  std::shared_ptr<log::Disk> disk;                   // tests: another file system
  // A record is about to move: look for it at `to` from now on. False: it was not known (any more) at `from`; it is
  // erased. Called from the background thread without locks of ours; may call the log. A record may move as soon as
  // append() has returned, so whoever notes its place down only then keeps `to` in mind and returns true for objects
  // that are being appended.
  std::function<bool(const ObjectId&, const LogPlace& from, const LogPlace& to)> moved;
};

struct LogWrite {
  LogRecord record;
  ConstPieces pieces;  // `record.bytes` all told; stay as they are until the call returns
};

struct LogRead {
  LogPlace place;
  ObjectId id;
  std::uint64_t offset = 0;
  std::span<std::byte> target;  // how many bytes, and where to. Undefined if the read fails
};

struct LogErase {
  ObjectId id;
  LogPlace place;
};

struct LogUsage {  // bytes
  std::uint64_t capacity = 0;
  std::uint64_t disk_bytes = 0;   // what the log's files take, as the file system counts it
  std::uint64_t spare_bytes = 0;  // of these, of files that hold nothing and will be used again
  std::uint64_t live_bytes = 0;   // of the payloads
  std::uint64_t live_records = 0, segments = 0;
  std::uint64_t largest_object = 0;  // that a log with nothing in it takes
  // Since it was opened:
  std::uint64_t stored_bytes = 0;     // payloads appended
  std::uint64_t written_bytes = 0;    // all that was written to the disk; over stored_bytes: the wear
  std::uint64_t compacted_bytes = 0;  // of these, moved by compaction
  std::uint64_t corrupt_reads = 0, damaged_records = 0;  // found wrong when read; dropped when it was opened
};

class Log {
 public:
  using Recovered = std::function<void(const LogRecord&, const LogPlace&)>;

  // Probes the directory by writing and reading, then finds what is there: `recovered` hears of each live record once,
  // before open returns. kUnavailable: in use by another process (named), or the disk fails; kPermissionDenied: not
  // writable; kResourceExhausted: no space; kInvalidArgument: options. The status names the path.
  static Result<std::unique_ptr<Log>> open(LogOptions options, const Recovered& recovered);
  virtual ~Log() = default;  // close()

  // A record outlives the death of this process once its place is returned. kResourceExhausted: the log or the file
  // system is full, and compaction cannot help: erase and try again. kUnavailable: the disk failed.
  virtual Result<LogPlace> append(const LogRecord& record, ConstPieces pieces, Deadline deadline) = 0;
  // One result each, in order. Records appended together are written together, and small ones packed.
  virtual std::vector<Result<LogPlace>> append_batch(std::span<const LogWrite> writes, Deadline deadline) = 0;

  // Only bytes whose checksums are right are returned as OK. kDataCorrupt: they are not, or the file is shorter than it
  // was: treat the object as absent and erase it. kStale: nothing is there (any more): erased, or moved, so look its
  // place up again. kOutOfRange: not within the record.
  virtual Status read(const LogPlace& place, const ObjectId& id, std::uint64_t offset, std::span<std::byte> target,
                      Deadline deadline) = 0;
  virtual std::vector<Status> read_batch(std::span<const LogRead> reads, Deadline deadline) = 0;

  // Once OK, the record does not come back after the death of this process. kStale as above.
  virtual Status erase(const ObjectId& id, const LogPlace& place, Deadline deadline) = 0;
  virtual std::vector<Status> erase_batch(std::span<const LogErase> erases, Deadline deadline) = 0;

  // Objects of the segment that has the least to lose: erasing all of them gives its space back at once.
  virtual std::vector<LogErase> cheapest_to_erase() const = 0;

  virtual LogUsage usage() const = 0;
  virtual std::string note() const = 0;            // how it reads and writes, and why not better
  virtual Status trouble() const = 0;              // the last thing that went wrong in the background; OK: nothing
  virtual Clock::time_point progress() const = 0;  // when the disk last ended a write well
  virtual void close() = 0;  // seals; waits for a `moved` under way; idempotent. Calls after it fail with kUnavailable
};

}  // namespace kvferry::store
