#include "device/staging.h"

#include <algorithm>
#include <array>
#include <vector>

namespace kvferry {
namespace {

constexpr std::uint64_t kSlots = CopyStream::kMarks;

// Walks over parts as if they were one piece of memory.
class Cursor {
 public:
  explicit Cursor(std::span<const Staging::Part> parts) : parts_(parts) {
    for (const Staging::Part& part : parts) left_ += part.length;
  }
  std::uint64_t left() const { return left_; }
  // The next contiguous run, at most `most` bytes.
  Staging::Part next(std::uint64_t most) {
    while (offset_ == parts_[index_].length) {
      ++index_;
      offset_ = 0;
    }
    const Staging::Part& part = parts_[index_];
    const Staging::Part run{part.data + offset_, std::min(most, part.length - offset_)};
    offset_ += run.length;
    left_ -= run.length;
    return run;
  }

 private:
  const std::span<const Staging::Part> parts_;
  std::size_t index_ = 0;
  std::uint64_t offset_ = 0;
  std::uint64_t left_ = 0;
};

}  // namespace

// One device's stream, and pinned memory for as many chunks as there may be open marks.
class Staging::Lane {
 public:
  static Result<std::unique_ptr<Lane>> open(MemoryPlace place);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  Status out(std::span<const Part> parts, const Limits& limits, const Send& send);
  Status in(std::span<const Part> parts, const Limits& limits, const Receive& receive);

 private:
  struct Chunk {  // bytes of one slot, and the mark behind their copy
    std::span<std::byte> bytes;
    std::uint64_t mark = 0;
  };
  Lane(DeviceDriver& driver, int device) : driver_(driver), device_(device) {}
  std::span<std::byte> slot(std::uint64_t chunk, std::uint64_t length) const {
    return {pinned_ + chunk % kSlots * kChunkBytes, length};
  }
  Result<Chunk> start_out(Cursor* cursor, std::uint64_t chunk);
  Status start_in(Cursor* cursor, std::span<const std::byte> bytes);

  DeviceDriver& driver_;
  const int device_;
  std::byte* pinned_ = nullptr;
  std::unique_ptr<CopyStream> stream_;
};

Result<std::unique_ptr<Staging::Lane>> Staging::Lane::open(MemoryPlace place) {
  KVF_ASSIGN_OR_RETURN(DeviceDriver* const driver, device_driver(place.kind));
  std::unique_ptr<Lane> lane(new Lane(*driver, place.device));
  KVF_ASSIGN_OR_RETURN(void* const pinned, driver->allocate_pinned(place.device, kSlots * kChunkBytes));
  lane->pinned_ = static_cast<std::byte*>(pinned);
  KVF_ASSIGN_OR_RETURN(lane->stream_, driver->open_stream(place.device));
  return lane;
}

Staging::Lane::~Lane() {
  stream_.reset();  // waits for copies that use the pinned memory
  if (pinned_ != nullptr) (void)driver_.release_pinned(device_, pinned_);  // nobody is left to tell
}

Result<Staging::Lane::Chunk> Staging::Lane::start_out(Cursor* cursor, std::uint64_t chunk) {
  const std::span<std::byte> bytes = slot(chunk, std::min(cursor->left(), kChunkBytes));
  for (std::uint64_t done = 0; done < bytes.size();) {
    const Part run = cursor->next(bytes.size() - done);
    KVF_RETURN_IF_ERROR(stream_->copy(bytes.data() + done, run.data, run.length));
    done += run.length;
  }
  KVF_ASSIGN_OR_RETURN(const std::uint64_t mark, stream_->record());
  return Chunk{bytes, mark};
}

Status Staging::Lane::out(std::span<const Part> parts, const Limits& limits, const Send& send) {
  Cursor cursor(parts);
  std::array<Chunk, kSlots> open;
  std::uint64_t started = 0, sent = 0;
  while (cursor.left() > 0 || sent < started) {
    while (cursor.left() > 0 && started - sent < kSlots) {
      KVF_ASSIGN_OR_RETURN(open[started % kSlots], start_out(&cursor, started));
      ++started;
    }
    const Chunk& chunk = open[sent % kSlots];
    KVF_RETURN_IF_ERROR(stream_->wait(chunk.mark, limits.deadline, limits.cancelled));
    KVF_RETURN_IF_ERROR(send(chunk.bytes));
    ++sent;
  }
  return {};
}

Status Staging::Lane::start_in(Cursor* cursor, std::span<const std::byte> bytes) {
  for (std::uint64_t done = 0; done < bytes.size();) {
    const Part run = cursor->next(bytes.size() - done);
    KVF_RETURN_IF_ERROR(stream_->copy(run.data, bytes.data() + done, run.length));
    done += run.length;
  }
  return {};
}

Status Staging::Lane::in(std::span<const Part> parts, const Limits& limits, const Receive& receive) {
  Cursor cursor(parts);
  std::array<std::uint64_t, kSlots> marks{};
  std::uint64_t chunks = 0;
  while (cursor.left() > 0) {
    const std::uint64_t before = marks[chunks % kSlots];  // of the chunk that had this slot
    if (before != 0) KVF_RETURN_IF_ERROR(stream_->wait(before, limits.deadline, limits.cancelled));
    const std::span<std::byte> bytes = slot(chunks, std::min(cursor.left(), kChunkBytes));
    KVF_RETURN_IF_ERROR(receive(bytes));
    KVF_RETURN_IF_ERROR(start_in(&cursor, bytes));
    KVF_ASSIGN_OR_RETURN(marks[chunks % kSlots], stream_->record());
    ++chunks;
  }
  const std::uint64_t last = *std::max_element(marks.begin(), marks.end());
  return last == 0 ? Status() : stream_->wait(last, limits.deadline, limits.cancelled);
}

Staging::Staging() = default;
Staging::~Staging() = default;

Result<Staging::Lane*> Staging::lane(MemoryPlace place) {
  std::unique_ptr<Lane>& slot = lanes_[place];
  if (!slot) {
    KVF_ASSIGN_OR_RETURN(slot, Lane::open(place));
  }
  return slot.get();
}

Status Staging::close_after(MemoryPlace place, Status status) {
  if (!status.ok()) lanes_.erase(place);
  return status;
}

Status Staging::out(MemoryPlace place, std::span<const Part> parts, const Limits& limits, const Send& send) {
  KVF_ASSIGN_OR_RETURN(Lane* const way, lane(place));
  return close_after(place, way->out(parts, limits, send));
}

Status Staging::in(MemoryPlace place, std::span<const Part> parts, const Limits& limits, const Receive& receive) {
  KVF_ASSIGN_OR_RETURN(Lane* const way, lane(place));
  return close_after(place, way->in(parts, limits, receive));
}

}  // namespace kvferry
