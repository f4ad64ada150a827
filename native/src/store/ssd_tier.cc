#include "store/ssd_tier.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "store/object_attributes.h"

namespace kvferry::store {
namespace {

constexpr milliseconds kFirstPause{250};
constexpr milliseconds kLongestPause{16000};
constexpr milliseconds kStuckAfter{6000};  // busy disks were seen to stand still for 3 s
constexpr milliseconds kCalm{5000};        // without a failure; a full disk takes something now and then
constexpr double kMostLive = 0.85;         // of the capacity; what is above it may cost much compaction

// What tells of the disk, not of one object.
bool is_failure(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
    case Code::kStale:
    case Code::kNotFound:
    case Code::kDataCorrupt:
    case Code::kOutOfRange:
    case Code::kInvalidArgument:
    case Code::kResourceExhausted:
      return false;
    default:
      return true;
  }
}

std::optional<SsdObject> object_of(const LogRecord& record) {
  auto attributes = decode_attributes(record.attributes);
  if (!attributes || record.id.is_nil() || record.key.size() > kMaxKeyBytes) return std::nullopt;
  SsdObject found;
  found.object = std::move(attributes->object);
  found.object.id = record.id;
  found.object.key = record.key;
  found.object.bytes = record.bytes;
  found.digest = record.digest;
  if (attributes->expires_wall_ms == kNoWallExpiry) return found;
  const std::uint64_t now_ms = wall_ms();
  if (attributes->expires_wall_ms <= now_ms) return std::nullopt;
  found.expires_in = milliseconds(attributes->expires_wall_ms - now_ms);
  return found;
}

}  // namespace

Result<std::unique_ptr<SsdTier>> SsdTier::open(const NodeOptions& options, std::shared_ptr<log::Disk> disk,
                                               const Callbacks& callbacks, StoreCounters& counters) {
  LogOptions log_options;
  log_options.directory = options.ssd_directory;
  log_options.capacity = options.ssd_bytes;
  log_options.sync = options.ssd_sync;
  log_options.disk = std::move(disk);
  log_options.moved = callbacks.moved;
  std::vector<LogErase> unwanted;
  auto log = Log::open(std::move(log_options), [&](const LogRecord& record, const LogPlace& place) {
    const auto object = object_of(record);
    const bool wanted = object && callbacks.recovered(*object, place);
    if (wanted) counters.add(StoreCounters::kSsdRecovered);
    if (!wanted) unwanted.push_back({record.id, place});
  });
  if (!log.ok()) return log.status().with_context("SSD tier");
  std::unique_ptr<SsdTier> tier(new SsdTier(counters));
  tier->log_ = std::move(*log);
  // What fails now is unwanted the next time, too.
  (void)tier->erase(std::move(unwanted), Clock::now() + std::chrono::seconds(30));
  return tier;
}

bool SsdTier::usable() const {
  const std::lock_guard lock(mutex_);
  return Clock::now() >= writes_.left_alone_until;
}

bool SsdTier::stuck() {
  const Clock::time_point progress = log_->progress();
  const std::lock_guard lock(mutex_);
  if (writing_since_.empty()) return false;
  const auto still =
      std::chrono::duration_cast<milliseconds>(Clock::now() - std::max(progress, *writing_since_.begin()));
  if (still < kStuckAfter) return false;
  if (!std::exchange(told_stuck_, true)) {
    counters_.add(StoreCounters::kSsdErrors);
    fail(writes_, {Code::kUnavailable, "the disk has ended no write for " + std::to_string(still.count()) +
                                           " ms; until it does, objects that leave memory are dropped"});
  }
  return true;
}

std::optional<std::string> SsdTier::trouble() {
  const std::string background = log_->trouble().to_string();
  (void)stuck();  // which nobody may have noticed
  const std::lock_guard lock(mutex_);
  for (Side* side : {&writes_, &reads_}) {
    look_if_over(*side);
    if (!side->failure.ok()) return "ssd: " + side->failure.to_string();
  }
  if (background == overcome_) return std::nullopt;
  return "ssd: " + background;
}

std::uint64_t SsdTier::most_live_bytes() const {
  return static_cast<std::uint64_t>(static_cast<double>(log_->usage().capacity) * kMostLive);
}

void SsdTier::note(Side& side, const Status& status) {
  const std::lock_guard lock(mutex_);
  if (is_failure(status)) {
    counters_.add(StoreCounters::kSsdErrors);
    fail(side, status);
    const milliseconds pause = std::min(kLongestPause, kFirstPause * (1 << std::min(side.failures, 6)));
    if (Clock::now() >= side.left_alone_until) ++side.failures;
    side.left_alone_until = Clock::now() + pause;
  } else if (status.ok()) {
    side.failures = 0;
    side.left_alone_until = {};
    if (!side.failure.ok() && !side.well_since) side.well_since = Clock::now();
    look_if_over(side);
  }
}

void SsdTier::fail(Side& side, const Status& status) {
  if (side.failure.ok()) log_event(LogLevel::kWarning, "ssd_tier_degraded", {{"side", side.name}, {"status", status}});
  side.failure = status;
  side.well_since.reset();
}

void SsdTier::look_if_over(Side& side) {
  if (!side.well_since || Clock::now() < *side.well_since + kCalm) return;
  log_event(LogLevel::kWarning, "ssd_tier_recovered", {{"side", side.name}});
  side.failure = {};
  side.well_since.reset();
}

void SsdTier::note_full(const Status& status) {
  const std::lock_guard lock(mutex_);
  fail(writes_, status);
}

std::vector<Result<LogPlace>> SsdTier::append_records(std::span<const LogWrite> records, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto mine = writing_since_.insert(Clock::now());
  lock.unlock();
  auto places = log_->append_batch(records, deadline);
  lock.lock();
  writing_since_.erase(mine);
  told_stuck_ = false;
  return places;
}

std::vector<Result<LogPlace>> SsdTier::append(std::span<const Write> writes, Deadline deadline) {
  std::vector<std::string> attributes;
  attributes.reserve(writes.size());
  std::vector<LogWrite> records;
  for (const Write& write : writes) {
    const SsdObject& from = write.object;
    const auto in_ms = from.expires_in.value_or(milliseconds(0)).count();
    attributes.push_back(encode_attributes(
        from.object, from.expires_in ? wall_ms() + static_cast<std::uint64_t>(in_ms) : kNoWallExpiry));
    records.push_back(
        {{from.object.id, from.object.key, from.object.bytes, from.digest, attributes.back()}, write.pieces});
  }
  auto places = append_records(records, deadline);
  // The worst of them tells.
  Status worst;
  for (const Result<LogPlace>& place : places) {
    if (!place.ok() && (worst.ok() || is_failure(place.status()))) worst = place.status();
  }
  note(writes_, worst);
  if (!worst.ok()) return places;
  // It writes again, so what went wrong in the background before is over.
  const std::string background = log_->trouble().to_string();
  const std::lock_guard lock(mutex_);
  overcome_ = background;
  return places;
}

Status SsdTier::read(const ObjectId& id, const LogPlace& place, const std::vector<std::span<std::byte>>& targets,
                     Deadline deadline) {
  std::vector<LogRead> reads;
  std::uint64_t offset = 0;
  for (const std::span<std::byte> target : targets) {
    reads.push_back({place, id, offset, target});
    offset += target.size();
  }
  if (reads.empty()) return {};  // no bytes
  for (const Status& status : log_->read_batch(reads, deadline)) {
    if (status.ok()) continue;
    // Whoever asked had no more time; that tells nothing of the disk.
    if (status.code() != Code::kDeadlineExceeded) note(reads_, status);
    return status;
  }
  note(reads_, {});
  return {};
}

std::vector<LogErase> SsdTier::erase(std::vector<LogErase> erases, Deadline deadline) {
  if (erases.empty()) return {};
  const std::vector<Status> results = log_->erase_batch(erases, deadline);
  std::vector<LogErase> failed;
  Status worst;
  for (std::size_t i = 0; i < erases.size(); ++i) {
    if (!is_failure(results[i])) continue;
    failed.push_back(erases[i]);
    // That whoever asked had no more time tells nothing of the disk.
    if (results[i].code() != Code::kDeadlineExceeded) worst = results[i];
  }
  if (!worst.ok()) note(writes_, worst);  // that a note of a removal was written does not mean that objects can be
  return failed;
}

}  // namespace kvferry::store
