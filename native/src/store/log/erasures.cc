#include "store/log/erasures.h"

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"
#include "store/log/format.h"

namespace kvferry::store::log {
namespace {

constexpr std::uint64_t kSumPlace = Erasures::kSectorBytes - sizeof(std::uint32_t);

std::uint32_t sum_of(ByteView sector) { return crc32c(sector.first(kSumPlace)); }

std::uint64_t byte_of(std::uint32_t record) {
  return record / Erasures::kSectorBits * Erasures::kSectorBytes + record % Erasures::kSectorBits / 8;
}

std::byte bit_of(std::uint32_t record) { return std::byte{1} << (record % 8); }

}  // namespace

std::uint64_t Erasures::bytes_for(std::uint64_t records) {
  return whole_units(std::max<std::uint64_t>(1, (records + kSectorBits - 1) / kSectorBits) * kSectorBytes);
}

Erasures Erasures::decode(ByteView bytes) {
  Erasures out;
  out.bytes_.assign(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / kUnit * kUnit));
  for (std::uint64_t at = 0; at < out.bytes_.size(); at += kSectorBytes) {
    const MutableByteView sector(&out.bytes_[at], kSectorBytes);
    const bool fresh = std::all_of(sector.begin(), sector.end(), [](std::byte value) { return value == std::byte{0}; });
    if (fresh || ByteReader(sector.subspan(kSumPlace)).u32() == sum_of(sector)) continue;
    std::fill(sector.begin(), sector.end(), std::byte{0xff});
    out.sum_sector(at / kSectorBytes);
    ++out.damaged_;
  }
  return out;
}

bool Erasures::contains(std::uint32_t record) const {
  return record >= capacity() || (bytes_[byte_of(record)] & bit_of(record)) != std::byte{0};
}

void Erasures::add(std::uint32_t record) {
  if (record >= capacity()) return;
  bytes_[byte_of(record)] |= bit_of(record);
  sum_sector(record / kSectorBits);
}

void Erasures::sum_sector(std::uint64_t sector) {
  const std::uint64_t begin = sector * kSectorBytes;
  const std::uint32_t sum = little_endian(sum_of(ByteView(&bytes_[begin], kSectorBytes)));
  std::memcpy(&bytes_[begin + kSumPlace], &sum, sizeof(sum));
}

std::uint64_t Erasures::unit_of(std::uint32_t record) const { return byte_of(record) / kUnit; }

void Erasures::copy_unit(std::uint64_t unit, MutableByteView out) const {
  std::memcpy(out.data(), &bytes_[unit * kUnit], kUnit);
}

}  // namespace kvferry::store::log
