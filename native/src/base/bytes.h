// Bounded little-endian encoding. Neither class throws; both are used by one thread at a time.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvferry/status.h"

namespace kvferry {

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;
using MutableByteView = std::span<std::byte>;

inline ByteView as_byte_view(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
template <std::size_t N>
ByteView as_byte_view(const std::array<std::uint8_t, N>& bytes) {
  return std::as_bytes(std::span(bytes));
}
inline std::string_view as_text(ByteView bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// To or from the order of the wire.
template <typename Integer>
constexpr Integer little_endian(Integer value) {
  if constexpr (std::endian::native == std::endian::little || sizeof(Integer) == 1) return value;
  Integer swapped = 0;
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    swapped = static_cast<Integer>(swapped | ((value >> (8 * i)) & 0xff) << (8 * (sizeof(Integer) - 1 - i)));
  }
  return swapped;
}

class ByteWriter {
 public:
  explicit ByteWriter(std::size_t expected_bytes = 0) { out_.reserve(expected_bytes); }
  // Continues after what `out` holds, in its memory: a buffer that is used again and again allocates nothing.
  explicit ByteWriter(Bytes&& out) : out_(std::move(out)) {}

  void u8(std::uint8_t value) { out_.push_back(static_cast<std::byte>(value)); }
  void u16(std::uint16_t value) { integer(value); }
  void u32(std::uint32_t value) { integer(value); }
  void u64(std::uint64_t value) { integer(value); }
  void raw(ByteView bytes);
  // Length prefix of 1, 2 or 4 bytes, then the text. Longer text than the prefix can say is cut: encoders check first.
  void text8(std::string_view text);
  void text16(std::string_view text);
  void text32(std::string_view text);

  std::size_t size() const { return out_.size(); }
  Bytes take() { return std::move(out_); }

 private:
  template <typename Integer>
  void integer(Integer value) {
    const Integer wire = little_endian(value);
    const auto* const first = reinterpret_cast<const std::byte*>(&wire);
    out_.insert(out_.end(), first, first + sizeof(wire));
  }
  Bytes out_;
};

// Reading past the end (or over a cap) yields zeros and makes the reader failed for good; ask finish() once at the end.
class ByteReader {
 public:
  explicit ByteReader(ByteView bytes) : rest_(bytes) {}

  std::uint8_t u8() { return integer<std::uint8_t>(); }
  std::uint16_t u16() { return integer<std::uint16_t>(); }
  std::uint32_t u32() { return integer<std::uint32_t>(); }
  std::uint64_t u64() { return integer<std::uint64_t>(); }
  ByteView raw(std::size_t length);
  std::string text8(std::size_t max_bytes) { return text(u8(), max_bytes); }
  std::string text16(std::size_t max_bytes) { return text(u16(), max_bytes); }
  std::string text32(std::size_t max_bytes) { return text(u32(), max_bytes); }
  template <std::size_t N>
  std::array<std::uint8_t, N> array() {
    std::array<std::uint8_t, N> out{};
    ByteView bytes = raw(N);
    for (std::size_t i = 0; i < bytes.size(); ++i) out[i] = static_cast<std::uint8_t>(bytes[i]);
    return out;
  }
  // The next `length` bytes must be zero: room that a later version may use.
  void reserved(std::size_t length);

  void fail(std::string_view why);  // first reason wins
  bool ok() const { return why_.empty(); }
  std::size_t remaining() const { return rest_.size(); }
  // OK if nothing failed and nothing is left; else kProtocolError "<what>: why".
  Status finish(std::string_view what) const;

 private:
  template <typename Integer>
  Integer integer() {
    Integer wire = 0;
    const ByteView bytes = raw(sizeof(wire));
    if (bytes.size() == sizeof(wire)) std::memcpy(&wire, bytes.data(), sizeof(wire));
    return little_endian(wire);
  }
  std::string text(std::size_t length, std::size_t max_bytes);
  ByteView rest_;
  std::string why_;
};

}  // namespace kvferry
