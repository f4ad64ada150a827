// 128 random bits, new at each start of an engine: identity and incarnation in one. Never derived from host:port.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "kvferry/export.h"
#include "kvferry/status.h"

namespace kvferry {

struct KVFERRY_API NodeId {
  std::array<std::uint8_t, 16> bytes{};

  static NodeId random();                             // getrandom(2)
  static Result<NodeId> parse(std::string_view hex);  // exactly 32 hex digits
  std::string to_string() const;                      // 32 lower-case hex digits
  bool is_nil() const { return bytes == std::array<std::uint8_t, 16>{}; }
  auto operator<=>(const NodeId&) const = default;
};

}  // namespace kvferry
