#include "base/bytes.h"

#include <algorithm>

namespace kvferry {

void ByteWriter::raw(ByteView bytes) {
  const std::size_t at = out_.size();
  out_.resize(at + bytes.size());
  std::copy(bytes.begin(), bytes.end(), out_.begin() + static_cast<std::ptrdiff_t>(at));
}

void ByteWriter::text8(std::string_view text) {
  text = text.substr(0, UINT8_MAX);
  u8(static_cast<std::uint8_t>(text.size()));
  raw(as_byte_view(text));
}

void ByteWriter::text16(std::string_view text) {
  text = text.substr(0, UINT16_MAX);
  u16(static_cast<std::uint16_t>(text.size()));
  raw(as_byte_view(text));
}

void ByteWriter::text32(std::string_view text) {
  text = text.substr(0, UINT32_MAX);
  u32(static_cast<std::uint32_t>(text.size()));
  raw(as_byte_view(text));
}

ByteView ByteReader::raw(std::size_t length) {
  if (!ok()) return {};
  if (length > rest_.size()) {
    fail("needs " + std::to_string(length) + " more bytes, has " + std::to_string(rest_.size()));
    return {};
  }
  const ByteView out = rest_.first(length);
  rest_ = rest_.subspan(length);
  return out;
}

std::string ByteReader::text(std::size_t length, std::size_t max_bytes) {
  if (length > max_bytes) {
    fail("text of " + std::to_string(length) + " bytes, at most " + std::to_string(max_bytes) + " are allowed");
    return {};
  }
  return std::string(as_text(raw(length)));
}

void ByteReader::reserved(std::size_t length) {
  const ByteView bytes = raw(length);
  if (std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{0}; })) {
    fail("reserved bytes are not zero");
  }
}

void ByteReader::fail(std::string_view why) {
  if (why_.empty()) why_ = why.empty() ? "malformed" : why;
}

Status ByteReader::finish(std::string_view what) const {
  if (!ok()) return {Code::kProtocolError, std::string(what) + ": " + why_};
  if (rest_.empty()) return {};
  return {Code::kProtocolError, std::string(what) + ": " + std::to_string(rest_.size()) + " bytes too many"};
}

}  // namespace kvferry
