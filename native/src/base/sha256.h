// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), for the handshake only: small inputs, no streaming to disk.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.h"

namespace kvferry {

using Digest = std::array<std::uint8_t, 32>;

class Sha256 {
 public:
  void update(ByteView bytes);
  Digest finish();  // the object must not be used afterwards

 private:
  void block(const std::uint8_t* data);
  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> pending_{};
  std::uint64_t total_bytes_ = 0;
};

Digest sha256(ByteView bytes);
Digest hmac_sha256(ByteView key, std::span<const ByteView> parts);  // of the concatenation of parts
bool equal_constant_time(const Digest& a, const Digest& b);

}  // namespace kvferry
