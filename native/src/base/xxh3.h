// XXH3 (https://github.com/Cyan4973/xxHash): very fast hashes of 64 and 128 bits, not cryptographic. Uses AVX2 on
// x86-64 machines that have it, NEON on arm64; the result is the same everywhere.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"

namespace kvferry {

struct Hash128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  // The canonical form, which other implementations print: big-endian, `high` first.
  std::array<std::uint8_t, 16> bytes() const;
  auto operator<=>(const Hash128&) const = default;
};

std::uint64_t xxh3_64(ByteView bytes, std::uint64_t seed = 0);
Hash128 xxh3_128(ByteView bytes, std::uint64_t seed = 0);

// Keyed by a whole secret of random bytes instead of 64 bits of seed.
inline constexpr std::size_t kXxh3SecretBytes = 192;
using Xxh3Secret = std::array<std::uint8_t, kXxh3SecretBytes>;
Hash128 xxh3_128(ByteView bytes, const Xxh3Secret& secret);

// Piece by piece, with the result of the whole. Copyable; used by one thread at a time.
class Xxh3 {
 public:
  explicit Xxh3(std::uint64_t seed = 0);
  void update(ByteView bytes);
  // Of all bytes so far; more may follow.
  std::uint64_t digest_64() const;
  Hash128 digest_128() const;

 private:
  static constexpr std::size_t kStateBytes = 576;
  alignas(64) std::array<std::byte, kStateBytes> state_;
};

// Without AVX2, to compare with.
Hash128 xxh3_128_portable(ByteView bytes, std::uint64_t seed = 0);
bool xxh3_is_accelerated();  // AVX2 or NEON

}  // namespace kvferry
