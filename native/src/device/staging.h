// Moves device memory through pinned host memory in chunks, so that the copy of one chunk overlaps with the sending or
// receiving of others. Used by one thread at a time; memory and streams are made at the first use and kept.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "device/driver.h"
#include "kvferry/status.h"
#include "kvferry/types.h"

namespace kvferry {

class Staging {
 public:
  static constexpr std::uint64_t kChunkBytes = 256u << 10;

  struct Part {  // of device memory
    std::byte* data = nullptr;
    std::uint64_t length = 0;
  };
  struct Limits {
    Deadline deadline;
    const std::atomic<bool>& cancelled;
  };
  using Send = std::function<Status(std::span<const std::byte>)>;
  using Receive = std::function<Status(std::span<std::byte>)>;

  Staging();
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Hands the parts' bytes, in order and without gaps, to `send`.
  Status out(MemoryPlace place, std::span<const Part> parts, const Limits& limits, const Send& send);
  // Fills the parts in order with what `receive` puts into the spans it is given. OK: the bytes are visible to all who
  // use the device's memory.
  Status in(MemoryPlace place, std::span<const Part> parts, const Limits& limits, const Receive& receive);

 private:
  class Lane;
  Result<Lane*> lane(MemoryPlace place);
  // After an error copies may still run: ends them, since the caller may free the memory now.
  Status close_after(MemoryPlace place, Status status);

  std::map<MemoryPlace, std::unique_ptr<Lane>> lanes_;
};

}  // namespace kvferry
