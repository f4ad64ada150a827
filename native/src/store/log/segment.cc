#include "store/log/segment.h"

#include <algorithm>
#include <utility>

namespace kvferry::store::log {
namespace {

constexpr std::uint64_t kEntryWeight = 256;  // an entry with a usual key, in its group and in the footer

// About what a record takes in its file.
std::uint64_t weight(std::uint64_t bytes) { return (bytes < kUnit ? bytes : whole_units(bytes)) + kEntryWeight; }

}  // namespace

Segment::Segment(LogFile opened, const SegmentHeader& header_in, QueuePool& queues, Spares& spares, Account& account)
    : file(std::move(opened)),
      header(header_in),
      erasures(header_in.erasure_bytes),
      tail(header_in.data_begin()),
      queues_(queues),
      spares_(spares),
      account_(account) {
  measure();
}

Segment::~Segment() {
  if (spare_path_.empty()) {
    queues_.forget_file(file.fd.get());
    account_.disk_bytes -= disk_bytes_;
    return;
  }
  file.path = spare_path_;
  spares_.add(std::move(file), disk_bytes_);
  --account_.leaving;
}

void Segment::leave(std::string spare_path) {
  spare_path_ = std::move(spare_path);
  ++account_.leaving;
}

void Segment::measure() {
  const std::uint64_t now = allocated_bytes(file.fd.get());
  account_.disk_bytes += now - disk_bytes_;  // wraps where it shrank, and so does the sum
  disk_bytes_ = now;
}

void Segment::add_live(const RecordEntry& entry) {
  RecordSlot& slot = slots[entry.record];
  slot = {entry.id, entry.offset, entry.bytes, static_cast<std::uint32_t>(sums.size()), RecordState::kLive};
  sums.insert(sums.end(), entry.sums.begin(), entry.sums.end());
  live_bytes += slot.bytes;
  live_weight += weight(slot.bytes);
  total_weight += weight(slot.bytes);
  ++live_records;
}

void Segment::drop(std::uint32_t record) {
  RecordSlot& slot = slots[record];
  if (slot.state == RecordState::kLive) {
    live_bytes -= slot.bytes;
    live_weight -= weight(slot.bytes);
    --live_records;
  }
  slot.state = RecordState::kDead;
}

void Segment::add_dead(const RecordEntry& entry) { total_weight += weight(entry.bytes); }

double Segment::live_share() const {
  return total_weight == 0 ? 0 : static_cast<double>(live_weight) / static_cast<double>(total_weight);
}

}  // namespace kvferry::store::log
