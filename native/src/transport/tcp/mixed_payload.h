// The payload of one request, of which parts may lie on accelerators: these go through pinned memory. Used by one
// thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "device/staging.h"
#include "wire/channel.h"
#include "wire/frame_reader.h"

namespace kvferry {

class MixedPayload {
 public:
  void clear();
  void add(std::byte* data, std::uint64_t length, MemoryPlace place);
  bool has_device_memory() const { return has_device_memory_; }

  // `head` first, then the parts in order.
  Status send(Channel& channel, Bytes& head, const Wait& wait, const std::atomic<bool>& cancelled);
  Status receive(FrameReader& reader, const Wait& wait, const std::atomic<bool>& cancelled);
  // Of one range, wherever it lies.
  Result<std::uint32_t> checksum(std::byte* data, std::uint64_t length, MemoryPlace place, const Wait& wait,
                                 const std::atomic<bool>& cancelled);

 private:
  struct Group {  // parts of one place that follow each other
    MemoryPlace place;
    std::vector<Staging::Part> parts;
  };
  void put_segments(const Group& group);

  std::vector<Group> groups_;
  bool has_device_memory_ = false;
  Staging staging_;
  std::vector<iovec> segments_;  // scratch
};

}  // namespace kvferry
