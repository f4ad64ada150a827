// The SSD tier as the store sees it: the log, what its records tell of objects, and whether it can be relied on now. A
// disk that fails is left alone for a while, longer each time. Thread-safe; moves bytes in the calling thread, so it is
// called without the store's lock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "store/local_store.h"
#include "store/log/log.h"
#include "store/store_counters.h"

namespace kvferry::store {

struct SsdObject {
  NewObject object;
  ContentDigest digest;
  std::optional<milliseconds> expires_in;  // from now; of one that is found again, at least a millisecond
};

class SsdTier {
 public:
  struct Callbacks {
    // Found when the log was opened; false: not wanted, to be erased.
    std::function<bool(const SsdObject&, const LogPlace&)> recovered;
    std::function<bool(const ObjectId&, const LogPlace& from, const LogPlace& to)> moved;  // as LogOptions
  };
  static Result<std::unique_ptr<SsdTier>> open(const NodeOptions& options, std::shared_ptr<log::Disk> disk,
                                               const Callbacks& callbacks, StoreCounters& counters);

  // False while it is left alone: whoever wants room drops objects instead.
  bool usable() const;
  // What is being written does not go on, and has not for some seconds: nobody should wait for it.
  bool stuck();

  struct Write {
    SsdObject object;
    std::vector<std::span<const std::byte>> pieces;
  };
  std::vector<Result<LogPlace>> append(std::span<const Write> writes, Deadline deadline);
  Status read(const ObjectId& id, const LogPlace& place, const std::vector<std::span<std::byte>>& targets,
              Deadline deadline);
  // Those that failed and must be tried again.
  std::vector<LogErase> erase(std::vector<LogErase> erases, Deadline deadline);

  std::vector<LogErase> cheapest_to_erase() const { return log_->cheapest_to_erase(); }
  LogUsage usage() const { return log_->usage(); }
  std::uint64_t most_live_bytes() const;  // of the payloads, so that the log can still compact
  std::optional<std::string> trouble();   // why it is degraded, or was within the last seconds
  // Objects were dropped since the log takes nothing, and giving up others did not help: degraded until it does.
  void note_full(const Status& status);
  void close() { log_->close(); }

 private:
  explicit SsdTier(StoreCounters& counters) : counters_(counters) {}
  struct Side {  // what reads and writes do is told apart: a disk may be readable only
    const char* name;
    Status failure;    // the last one; OK: none, or it is over
    int failures = 0;  // since something worked
    Clock::time_point left_alone_until{};
    std::optional<Clock::time_point> well_since;  // something works again, but it has to last before it is over
  };
  std::vector<Result<LogPlace>> append_records(std::span<const LogWrite> records, Deadline deadline);
  void note(Side& side, const Status& status);
  void fail(Side& side, const Status& status);  // this and the next with the mutex held
  void look_if_over(Side& side);

  StoreCounters& counters_;
  std::unique_ptr<Log> log_;
  mutable std::mutex mutex_;
  Side reads_{"read", {}, 0, {}, {}}, writes_{"write", {}, 0, {}, {}};
  std::multiset<Clock::time_point> writing_since_;  // the calls of append() under way
  bool told_stuck_ = false;
  std::string overcome_ = Status().to_string();  // trouble of the log's that is over, or none
};

}  // namespace kvferry::store
