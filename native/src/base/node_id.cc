#include "kvferry/node_id.h"

#include <span>

#include "base/random.h"

namespace kvferry {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

NodeId NodeId::random() {
  NodeId id;
  do {
    fill_random(std::as_writable_bytes(std::span(id.bytes)));
  } while (id.is_nil());
  return id;
}

Result<NodeId> NodeId::parse(std::string_view hex) {
  NodeId id;
  if (hex.size() != 2 * id.bytes.size()) {
    return {Code::kInvalidArgument, "a node id has 32 hex digits, not " + std::to_string(hex.size())};
  }
  for (std::size_t i = 0; i < id.bytes.size(); ++i) {
    const int high = hex_digit(hex[2 * i]);
    const int low = hex_digit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return {Code::kInvalidArgument, "a node id has only hex digits"};
    id.bytes[i] = static_cast<std::uint8_t>(high * 16 + low);
  }
  if (id.is_nil()) return {Code::kInvalidArgument, "a node id of zeros is nobody's"};
  return id;
}

std::string NodeId::to_string() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  out.reserve(2 * bytes.size());
  for (const std::uint8_t byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

}  // namespace kvferry
