// Which records of a segment are erased: one bit each, kept in the file's first units so that to erase takes no space.
// Sectors of 512 bytes carry a checksum each, so that a torn write loses nothing that was there before.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"

namespace kvferry::store::log {

class Erasures {
 public:
  static constexpr std::uint64_t kSectorBytes = 512;
  static constexpr std::uint64_t kSectorBits = (kSectorBytes - 8) * 8;  // 8 bytes: the sum, and room

  Erasures() = default;
  explicit Erasures(std::uint64_t bytes) : bytes_(bytes) {}  // none; `bytes` on disk, a multiple of the unit
  // What was on disk. Where a sector's sum is wrong, all of its records count as erased: a cache may forget.
  static Erasures decode(ByteView bytes);
  static std::uint64_t bytes_for(std::uint64_t records);  // whole units

  std::uint64_t capacity() const { return capacity_of(bytes_.size()); }  // in records
  static std::uint64_t capacity_of(std::uint64_t bytes) { return bytes / kSectorBytes * kSectorBits; }
  bool contains(std::uint32_t record) const;
  void add(std::uint32_t record);  // below capacity()
  std::uint64_t unit_of(std::uint32_t record) const;
  void copy_unit(std::uint64_t unit, MutableByteView out) const;  // as it is on disk; one unit
  std::uint32_t damaged_sectors() const { return damaged_; }

 private:
  void sum_sector(std::uint64_t sector);

  Bytes bytes_;
  std::uint32_t damaged_ = 0;
};

}  // namespace kvferry::store::log
