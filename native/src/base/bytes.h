// Bounded little-endian encoding. Neither class throws; both are used by one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
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

class ByteWriter {
 public:
  explicit ByteWriter(std::size_t expected_bytes = 0) { out_.reserve(expected_bytes); }

  void u8(std::uint8_t value) { out_.push_back(static_cast<std::byte>(value)); }
  void u16(std::uint16_t value) { little_endian(value, 2); }
  void u32(std::uint32_t value) { little_endian(value, 4); }
  void u64(std::uint64_t value) { little_endian(value, 8); }
  void raw(ByteView bytes);
  // Length prefix of 1, 2 or 4 bytes, then the text. Longer text than the prefix can say is cut: encoders check first.
  void text8(std::string_view text);
  void text16(std::string_view text);
  void text32(std::string_view text);

  std::size_t size() const { return out_.size(); }
  Bytes take() { return std::move(out_); }

 private:
  void little_endian(std::uint64_t value, int width);
  Bytes out_;
};

// Reading past the end (or over a cap) yields zeros and makes the reader failed for good; ask finish() once at the end.
class ByteReader {
 public:
  explicit ByteReader(ByteView bytes) : rest_(bytes) {}

  std::uint8_t u8() { return static_cast<std::uint8_t>(little_endian(1)); }
  std::uint16_t u16() { return static_cast<std::uint16_t>(little_endian(2)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(little_endian(4)); }
  std::uint64_t u64() { return little_endian(8); }
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
  std::uint64_t little_endian(std::size_t width);
  std::string text(std::size_t length, std::size_t max_bytes);
  ByteView rest_;
  std::string why_;
};

}  // namespace kvferry
