#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

namespace kvferry {
namespace {

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  constexpr std::uint32_t kReflectedPolynomial = 0x82f63b78;
  Tables tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kReflectedPolynomial : 0);
    tables[0][i] = crc;
  }
  for (std::size_t t = 1; t < 8; ++t) {
    for (std::size_t i = 0; i < 256; ++i) {
      const std::uint32_t previous = tables[t - 1][i];
      tables[t][i] = (previous >> 8) ^ tables[0][previous & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

std::uint8_t at(ByteView bytes, std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); }

// The instruction has a latency of 3 cycles and a throughput of 1, so three streams are run side by side over blocks of
// this many bytes and joined with zero-extension operators.
constexpr std::size_t kStreamBytes = 4096;

// What kStreamBytes zero bytes do to a CRC, as four lookups, one per byte of the CRC.
using ZeroOperator = std::array<std::array<std::uint32_t, 256>, 4>;

ZeroOperator make_zero_operator() {
  std::array<std::uint32_t, 32> column{};  // the effect on each single bit; the operator is linear
  for (std::size_t bit = 0; bit < 32; ++bit) {
    std::uint32_t crc = std::uint32_t{1} << bit;
    for (std::size_t i = 0; i < kStreamBytes; ++i) crc = (crc >> 8) ^ kTables[0][crc & 0xff];
    column[bit] = crc;
  }
  ZeroOperator op{};
  for (std::size_t byte = 0; byte < 4; ++byte) {
    for (std::size_t value = 0; value < 256; ++value) {
      for (std::size_t bit = 0; bit < 8; ++bit) {
        op[byte][value] ^= (value >> bit & 1) != 0 ? column[8 * byte + bit] : 0;
      }
    }
  }
  return op;
}

std::uint32_t apply_zeros(const ZeroOperator& op, std::uint32_t crc) {
  return op[0][crc & 0xff] ^ op[1][crc >> 8 & 0xff] ^ op[2][crc >> 16 & 0xff] ^ op[3][crc >> 24];
}

std::uint64_t load_u64(const std::byte* data) {
  std::uint64_t value = 0;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

#if defined(__x86_64__)

#define KVF_CRC_TARGET __attribute__((target("sse4.2")))
bool detect_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
KVF_CRC_TARGET inline std::uint32_t step_u64(std::uint32_t crc, std::uint64_t value) {
  return static_cast<std::uint32_t>(_mm_crc32_u64(crc, value));
}
KVF_CRC_TARGET inline std::uint32_t step_u8(std::uint32_t crc, std::uint8_t value) { return _mm_crc32_u8(crc, value); }

#elif defined(__aarch64__)

#define KVF_CRC_TARGET __attribute__((target("+crc")))
bool detect_instruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
KVF_CRC_TARGET inline std::uint32_t step_u64(std::uint32_t crc, std::uint64_t value) { return __crc32cd(crc, value); }
KVF_CRC_TARGET inline std::uint32_t step_u8(std::uint32_t crc, std::uint8_t value) { return __crc32cb(crc, value); }

#else

#define KVF_CRC_TARGET
bool detect_instruction() { return false; }
std::uint32_t step_u8(std::uint32_t crc, std::uint8_t value) { return (crc >> 8) ^ kTables[0][(crc ^ value) & 0xff]; }
std::uint32_t step_u64(std::uint32_t crc, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) crc = step_u8(crc, static_cast<std::uint8_t>(value >> (8 * i)));
  return crc;
}

#endif

KVF_CRC_TARGET std::uint32_t crc32c_instruction(ByteView bytes, std::uint32_t seed) {
  static const ZeroOperator zeros = make_zero_operator();
  std::uint32_t crc = ~seed;
  const std::byte* data = bytes.data();
  std::size_t left = bytes.size();
  while (left >= 3 * kStreamBytes) {
    std::uint32_t second = 0;
    std::uint32_t third = 0;
    for (std::size_t i = 0; i < kStreamBytes; i += 8) {
      crc = step_u64(crc, load_u64(data + i));
      second = step_u64(second, load_u64(data + kStreamBytes + i));
      third = step_u64(third, load_u64(data + 2 * kStreamBytes + i));
    }
    crc = apply_zeros(zeros, apply_zeros(zeros, crc) ^ second) ^ third;
    data += 3 * kStreamBytes;
    left -= 3 * kStreamBytes;
  }
  for (; left >= 8; left -= 8, data += 8) crc = step_u64(crc, load_u64(data));
  for (; left > 0; --left, ++data) crc = step_u8(crc, static_cast<std::uint8_t>(*data));
  return ~crc;
}

}  // namespace

std::uint32_t crc32c_portable(ByteView bytes, std::uint32_t seed) {
  std::uint32_t crc = ~seed;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    crc = kTables[7][(crc ^ at(bytes, i)) & 0xff] ^ kTables[6][(crc >> 8 ^ at(bytes, i + 1)) & 0xff] ^
          kTables[5][(crc >> 16 ^ at(bytes, i + 2)) & 0xff] ^ kTables[4][(crc >> 24 ^ at(bytes, i + 3)) & 0xff] ^
          kTables[3][at(bytes, i + 4)] ^ kTables[2][at(bytes, i + 5)] ^ kTables[1][at(bytes, i + 6)] ^
          kTables[0][at(bytes, i + 7)];
  }
  for (; i < bytes.size(); ++i) crc = (crc >> 8) ^ kTables[0][(crc ^ at(bytes, i)) & 0xff];
  return ~crc;
}

bool crc32c_is_accelerated() {
  static const bool accelerated = detect_instruction();
  return accelerated;
}

std::uint32_t crc32c(ByteView bytes, std::uint32_t seed) {
  return crc32c_is_accelerated() ? crc32c_instruction(bytes, seed) : crc32c_portable(bytes, seed);
}

}  // namespace kvferry
