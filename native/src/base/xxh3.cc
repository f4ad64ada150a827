#include "base/xxh3.h"

#include <algorithm>
#include <cstring>

#include "base/block_copy.h"
#include "base/xxh3_kernels.h"

namespace kvferry {
namespace {

constexpr Xxh3Kernels kBaseline = KVF_XXH3_KERNELS(nullptr);

#if defined(__x86_64__)
bool detect_avx2() { return __builtin_cpu_supports("avx2") != 0; }
const Xxh3Kernels& kernels() { return xxh3_is_accelerated() ? kXxh3Avx2 : kBaseline; }
#else
const Xxh3Kernels& kernels() { return kBaseline; }
#endif

// Up to here XXH3 uses no vector instruction, and the call is short enough for an inlined one to matter.
constexpr std::size_t kScalarBytes = 240;

constexpr std::size_t kCacheLine = 64;
// Digested and copied in turn. Small enough for the processor to work on the digest of one step while the stores of the
// one before still drain: measured, 1 to 4 KiB do that, and with more one waits for the other.
constexpr std::size_t kStep = 2048;
constexpr std::size_t kAhead = 4096;  // how far ahead of the copy the source is fetched

Hash128 from(XXH128_hash_t hash) { return {hash.low64, hash.high64}; }

XXH3_state_t* as_state(std::byte* storage) { return reinterpret_cast<XXH3_state_t*>(storage); }
const XXH3_state_t* as_state(const std::byte* storage) { return reinterpret_cast<const XXH3_state_t*>(storage); }

}  // namespace

std::array<std::uint8_t, 16> Hash128::bytes() const {
  std::array<std::uint8_t, 16> out{};
  for (std::size_t i = 0; i < 8; ++i) {
    out[i] = static_cast<std::uint8_t>(high >> (56 - 8 * i));
    out[8 + i] = static_cast<std::uint8_t>(low >> (56 - 8 * i));
  }
  return out;
}

std::uint64_t xxh3_64(ByteView bytes, std::uint64_t seed) {
  if (bytes.size() <= kScalarBytes) return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
  return kernels().hash_64(bytes.data(), bytes.size(), seed);
}

Hash128 xxh3_128(ByteView bytes, std::uint64_t seed) {
  if (bytes.size() <= kScalarBytes) return from(XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed));
  return from(kernels().hash_128(bytes.data(), bytes.size(), seed));
}

Hash128 xxh3_128(ByteView bytes, const Xxh3Secret& secret) {
  if (bytes.size() <= kScalarBytes) {
    return from(XXH3_128bits_withSecret(bytes.data(), bytes.size(), secret.data(), secret.size()));
  }
  return from(kernels().hash_128_keyed(bytes.data(), bytes.size(), secret.data(), secret.size()));
}

const std::byte* Xxh3::state() const {
  const std::size_t beyond = reinterpret_cast<std::uintptr_t>(storage_.data()) % kAlignment;
  return storage_.data() + (beyond == 0 ? 0 : kAlignment - beyond);
}

Xxh3::Xxh3(std::uint64_t seed) : storage_{} {
  static_assert(sizeof(XXH3_state_t) <= kStateBytes && alignof(XXH3_state_t) <= kAlignment);
  XXH3_INITSTATE(as_state(state()));
  XXH3_128bits_reset_withSeed(as_state(state()), seed);
}

Xxh3& Xxh3::operator=(const Xxh3& other) {
  if (this != &other) std::memcpy(state(), other.state(), kStateBytes);
  return *this;
}

void Xxh3::update(ByteView bytes) {
  if (!bytes.empty()) kernels().update(as_state(state()), bytes.data(), bytes.size());
}

void Xxh3::update_and_stream(ByteView bytes, std::byte* to) {
  const std::size_t head = xxh3_bytes_to_complete(as_state(state()));
  const bool whole_lines = reinterpret_cast<std::uintptr_t>(to + head) % kCacheLine == 0;
  if (kernels().update_and_stream != nullptr && whole_lines && bytes.size() > kXxh3StreamedBytes) {
    kernels().update_and_stream(as_state(state()), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                                reinterpret_cast<unsigned char*>(to));
    return;
  }
  // The first step ends at a whole cache line of the target, so that all others are whole lines.
  std::size_t step = kStep - reinterpret_cast<std::uintptr_t>(to) % kCacheLine;
  for (std::size_t at = 0; at < bytes.size(); at += step, step = kStep) {
    step = std::min(step, bytes.size() - at);
    const std::byte* const source = bytes.data() + at;
    update({source, step});
    stream_block({to + at, source, step}, bytes.data() + std::min(at + kAhead, bytes.size() - step));
  }
}

std::uint64_t Xxh3::digest_64() const { return XXH3_64bits_digest(as_state(state())); }
Hash128 Xxh3::digest_128() const { return from(XXH3_128bits_digest(as_state(state()))); }

Hash128 xxh3_128_portable(ByteView bytes, std::uint64_t seed) {
  return from(kBaseline.hash_128(bytes.data(), bytes.size(), seed));
}

bool xxh3_is_accelerated() {
#if defined(__x86_64__)
  static const bool accelerated = detect_avx2();
  return accelerated;
#else
  return XXH_VECTOR != XXH_SCALAR;
#endif
}

}  // namespace kvferry
