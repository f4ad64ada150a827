// SHA-256 (FIPS 180-4), HMAC-SHA-256 (RFC 2104) and HKDF-SHA-256 (RFC 5869), for the handshake and for the tags of
// frames: small inputs. Uses the processor's SHA instructions where it has them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "base/sha256_blocks.h"

namespace kvferry {

using Digest = std::array<std::uint8_t, 32>;

class Sha256 {
 public:
  void update(ByteView bytes);
  Digest finish();  // the object must not be used afterwards

 private:
  Sha256State state_ = kSha256Start;
  std::array<std::byte, 64> pending_{};
  std::uint64_t total_bytes_ = 0;
};

// A key made ready once for many messages. of() may be called from any thread.
class HmacSha256 {
 public:
  explicit HmacSha256(ByteView key);
  Digest of(std::span<const ByteView> parts) const;  // of the concatenation of parts

 private:
  Sha256 inner_;  // after the padded key
  Sha256 outer_;
};

Digest sha256(ByteView bytes);
// Of `first` followed by `second`. Faster than piece by piece if both together have at most kSha256ShortBytes.
inline constexpr std::size_t kSha256ShortBytes = 119;
Digest sha256(ByteView first, ByteView second);
Digest hmac_sha256(ByteView key, std::span<const ByteView> parts);
// `out` gets at most 255 * 32 bytes of key material, bound to `info`.
void hkdf_sha256(ByteView salt, ByteView secret, ByteView info, std::span<std::uint8_t> out);
// In a time that does not tell where they differ. Views of different lengths are unequal.
bool equal_constant_time(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b);

}  // namespace kvferry
