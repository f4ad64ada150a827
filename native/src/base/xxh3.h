// XXH3 (https://github.com/Cyan4973/xxHash): very fast hashes of 64 and 128 bits, not cryptographic. Uses AVX2 on
// x86-64 machines that have it, NEON on arm64; the result is the same everywhere.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

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
  Xxh3(const Xxh3& other) { *this = other; }
  Xxh3& operator=(const Xxh3& other);
  void update(ByteView bytes);
  // The same, and copies the bytes to `to`, past the cache: fence_streamed() (base/block_copy.h) must follow.
  void update_and_stream(ByteView bytes, std::byte* to);
  // Of all bytes so far; more may follow.
  std::uint64_t digest_64() const;
  Hash128 digest_128() const;

 private:
  static constexpr std::size_t kStateBytes = 576, kAlignment = 64;
  const std::byte* state() const;
  std::byte* state() { return const_cast<std::byte*>(std::as_const(*this).state()); }
  // Aligned by hand: an alignas() of more than 32 is not kept on stacks that AddressSanitizer looks for use after
  // return of (https://gcc.gnu.org/PR110027).
  std::array<std::byte, kStateBytes + kAlignment> storage_;
};

// Without AVX2, to compare with.
Hash128 xxh3_128_portable(ByteView bytes, std::uint64_t seed = 0);
bool xxh3_is_accelerated();  // AVX2 or NEON

}  // namespace kvferry
