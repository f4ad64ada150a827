#include "transport/shm/stream_copy.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvferry {

void copy_cached(std::byte* to, const std::byte* from, std::size_t length) { std::memcpy(to, from, length); }

#if defined(__x86_64__)
namespace {

constexpr std::size_t kStep = 128;

__attribute__((target("avx2"))) void stream_avx2(std::byte* to, const std::byte* from, std::size_t length) {
  const std::size_t head = std::min<std::size_t>((32 - reinterpret_cast<std::uintptr_t>(to) % 32) % 32, length);
  std::memcpy(to, from, head);
  to += head;
  from += head;
  length -= head;
  for (; length >= kStep; length -= kStep, to += kStep, from += kStep) {
    const auto* const source = static_cast<const __m256i*>(static_cast<const void*>(from));
    auto* const target = static_cast<__m256i*>(static_cast<void*>(to));
    const __m256i a = _mm256_loadu_si256(source);
    const __m256i b = _mm256_loadu_si256(source + 1);
    const __m256i c = _mm256_loadu_si256(source + 2);
    const __m256i d = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
    _mm256_stream_si256(target + 2, c);
    _mm256_stream_si256(target + 3, d);
  }
  _mm_sfence();
  std::memcpy(to, from, length);
}

const bool kHaveAvx2 = __builtin_cpu_supports("avx2") != 0;

}  // namespace

void copy_streaming(std::byte* to, const std::byte* from, std::size_t length) {
  if (kHaveAvx2) {
    stream_avx2(to, from, length);
  } else {
    std::memcpy(to, from, length);
  }
}
#else
void copy_streaming(std::byte* to, const std::byte* from, std::size_t length) { std::memcpy(to, from, length); }
#endif

}  // namespace kvferry
