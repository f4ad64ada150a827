#include "base/sha256_blocks.h"

#include <bit>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define KVF_SHA_TARGET __attribute__((target("sha,sse4.1")))
#endif

namespace kvferry {
namespace {

alignas(16) constexpr std::array<std::uint32_t, 64> kRound{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t load_big_endian(const std::byte* p) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<std::uint8_t>(p[i]);
  return value;
}

void portable_block(Sha256State& state, const std::byte* data) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 16; ++i) w[i] = load_big_endian(data + 4 * i);
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const Sha256State add{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state[i] += add[i];
}

#if defined(__x86_64__)

// The instruction keeps the state as two registers, ABEF and CDGH, most significant word first.
struct Halves {
  __m128i abef;
  __m128i cdgh;
};

KVF_SHA_TARGET inline Halves load_state(const Sha256State& state) {
  const __m128i dcba = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state.data()));
  const __m128i hgfe = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state.data() + 4));
  const __m128i cdab = _mm_shuffle_epi32(dcba, 0xb1);
  const __m128i efgh = _mm_shuffle_epi32(hgfe, 0x1b);
  return {_mm_alignr_epi8(cdab, efgh, 8), _mm_blend_epi16(efgh, cdab, 0xf0)};
}

KVF_SHA_TARGET inline void store_state(const Halves& halves, Sha256State& state) {
  const __m128i feba = _mm_shuffle_epi32(halves.abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(halves.cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data()), _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data() + 4), _mm_alignr_epi8(dchg, feba, 8));
}

KVF_SHA_TARGET inline Halves four_rounds(const Halves& in, __m128i words, std::size_t round) {
  const __m128i k = _mm_load_si128(reinterpret_cast<const __m128i*>(kRound.data() + round));
  const __m128i sum = _mm_add_epi32(words, k);
  const __m128i cdgh = _mm_sha256rnds2_epu32(in.cdgh, in.abef, sum);
  return {_mm_sha256rnds2_epu32(in.abef, cdgh, _mm_shuffle_epi32(sum, 0x0e)), cdgh};
}

// w[t..t+3] from the sixteen words before them, in registers of four.
KVF_SHA_TARGET inline __m128i next_words(__m128i w0, __m128i w1, __m128i w2, __m128i w3) {
  const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w0, w1), _mm_alignr_epi8(w3, w2, 4));
  return _mm_sha256msg2_epu32(sum, w3);
}

KVF_SHA_TARGET inline __m128i big_endian_words(const std::byte* data) {
  const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  return _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data)), order);
}

KVF_SHA_TARGET void blocks_by_instruction(Sha256State& state, const std::byte* data, std::size_t blocks) {
  Halves now = load_state(state);
  for (; blocks > 0; --blocks, data += 64) {
    const Halves before = now;
    __m128i w0 = big_endian_words(data), w1 = big_endian_words(data + 16);
    __m128i w2 = big_endian_words(data + 32), w3 = big_endian_words(data + 48);
    for (std::size_t round = 0; round < 64; round += 4) {
      now = four_rounds(now, w0, round);
      const __m128i next = next_words(w0, w1, w2, w3);  // the last four are not used
      w0 = w1;
      w1 = w2;
      w2 = w3;
      w3 = next;
    }
    now = {_mm_add_epi32(now.abef, before.abef), _mm_add_epi32(now.cdgh, before.cdgh)};
  }
  store_state(now, state);
}

bool detect_instruction() {  // __builtin_cpu_supports does not know "sha" in every compiler that we support
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__builtin_cpu_supports("sse4.1") == 0 || __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (ebx & bit_SHA) != 0;
}

#else

void blocks_by_instruction(Sha256State& state, const std::byte* data, std::size_t blocks) {
  sha256_blocks_portable(state, data, blocks);
}
bool detect_instruction() { return false; }

#endif

}  // namespace

void sha256_blocks_portable(Sha256State& state, const std::byte* data, std::size_t blocks) {
  for (; blocks > 0; --blocks, data += 64) portable_block(state, data);
}

bool sha256_is_accelerated() {
  static const bool accelerated = detect_instruction();
  return accelerated;
}

void sha256_blocks(Sha256State& state, const std::byte* data, std::size_t blocks) {
  if (sha256_is_accelerated()) return blocks_by_instruction(state, data, blocks);
  sha256_blocks_portable(state, data, blocks);
}

}  // namespace kvferry
