// Plain types shared by all native layers: time, operations, memory kinds, region identities.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "kvferry/export.h"

namespace kvferry {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;
using std::chrono::milliseconds;

enum class Op : std::uint8_t { kRead = 1, kWrite = 2 };  // seen from the initiator
enum class MemoryKind : std::uint8_t { kHost = 0, kCuda = 1, kHip = 2, kAscend = 3, kFile = 4, kDax = 5 };
KVFERRY_API std::string_view memory_kind_name(MemoryKind kind);  // "host", "cuda", ...

enum Access : std::uint8_t { kRemoteRead = 1, kRemoteWrite = 2 };  // bit set

struct RegionKey {
  std::uint32_t id = 0;          // index in the owner's table; 0 is never used
  std::uint32_t generation = 0;  // grows each time an id is reused
  auto operator<=>(const RegionKey&) const = default;
};

struct RegionInfo {  // what a peer learns of a region: never an address
  RegionKey key;
  std::uint64_t length = 0;
  MemoryKind kind = MemoryKind::kHost;
  std::uint8_t access = kRemoteRead;
  std::string name;  // up to 255 bytes, chosen by the owner, e.g. a layer name
  bool operator==(const RegionInfo&) const = default;
};

}  // namespace kvferry
