#include "base/block_copy.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvferry {
namespace {

constexpr std::size_t kCacheLine = 64;
// How far ahead of the copy the source is fetched. A page: at that distance the page table walk is done in time, too.
constexpr std::size_t kAhead = 4096;

void prefetch(const std::byte* from, std::size_t length) {
  for (std::size_t at = 0; at < std::min(length, kAhead); at += kCacheLine) __builtin_prefetch(from + at, 0, 3);
}

// Within a block the hardware looks ahead by itself.
void copy_cached(std::span<const BlockCopy> blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i + 1 < blocks.size()) prefetch(blocks[i + 1].from, blocks[i + 1].length);
    std::memcpy(blocks[i].to, blocks[i].from, blocks[i].length);
  }
}

#if defined(__x86_64__)

// Shorter ones gain nothing: measured with 1, 2 and 4 KiB.
constexpr std::size_t kMinStreamedBlock = 4096;
constexpr std::size_t kStep = 128;

// `length` is a multiple of kStep and `to` aligned to the vector; `ahead` is fetched at the same pace.
using StreamSteps = void (*)(std::byte* to, const std::byte* from, std::size_t length, const std::byte* ahead);

__attribute__((target("avx2"))) void stream_steps_avx2(std::byte* to, const std::byte* from, std::size_t length,
                                                       const std::byte* ahead) {
  constexpr std::size_t kWords = kStep / sizeof(__m256i);
  for (std::size_t at = 0; at < length; at += kStep) {
    _mm_prefetch(ahead + at, _MM_HINT_NTA);
    _mm_prefetch(ahead + at + kCacheLine, _MM_HINT_NTA);
    const auto* const source = static_cast<const __m256i*>(static_cast<const void*>(from + at));
    auto* const target = static_cast<__m256i*>(static_cast<void*>(to + at));
    __m256i words[kWords];
    for (std::size_t i = 0; i < kWords; ++i) words[i] = _mm256_loadu_si256(source + i);
    for (std::size_t i = 0; i < kWords; ++i) _mm256_stream_si256(target + i, words[i]);
  }
}

void stream_steps_sse2(std::byte* to, const std::byte* from, std::size_t length, const std::byte* ahead) {
  constexpr std::size_t kWords = kStep / sizeof(__m128i);
  for (std::size_t at = 0; at < length; at += kStep) {
    _mm_prefetch(ahead + at, _MM_HINT_NTA);
    _mm_prefetch(ahead + at + kCacheLine, _MM_HINT_NTA);
    const auto* const source = static_cast<const __m128i*>(static_cast<const void*>(from + at));
    auto* const target = static_cast<__m128i*>(static_cast<void*>(to + at));
    __m128i words[kWords];
    for (std::size_t i = 0; i < kWords; ++i) words[i] = _mm_loadu_si128(source + i);
    for (std::size_t i = 0; i < kWords; ++i) _mm_stream_si128(target + i, words[i]);
  }
}

// AVX-512 was measured, too: within noise of AVX2 (the memory is the limit), so it is not worth a lower clock.
const StreamSteps kStreamSteps = __builtin_cpu_supports("avx2") != 0 ? stream_steps_avx2 : stream_steps_sse2;

void copy_streaming(std::span<const BlockCopy> blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockCopy& block = blocks[i];
    const std::byte* const next = i + 1 < blocks.size() ? blocks[i + 1].from : block.from;
    if (block.length >= kMinStreamedBlock) {
      stream_block(block, next);
    } else {
      prefetch(next, kAhead);
      std::memcpy(block.to, block.from, block.length);
    }
  }
  fence_streamed();
}

#else

void copy_streaming(std::span<const BlockCopy> blocks) { copy_cached(blocks); }

#endif

}  // namespace

#if defined(__x86_64__)

void stream_block(const BlockCopy& block, const std::byte* next) {
  constexpr std::size_t kAlignment = 64;  // whole lines from the first store on
  const std::size_t skew = (kAlignment - reinterpret_cast<std::uintptr_t>(block.to) % kAlignment) % kAlignment;
  const std::size_t head = std::min(skew, block.length);
  const std::size_t middle = (block.length - head) / kStep * kStep;
  const std::size_t tail = block.length - head - middle;
  std::byte* const to = block.to + head;
  const std::byte* const from = block.from + head;
  std::memcpy(block.to, block.from, head);
  const std::size_t own = middle > kAhead ? middle - kAhead : 0;  // so far the fetches stay in this block
  kStreamSteps(to, from, own, from + kAhead);
  kStreamSteps(to + own, from + own, middle - own, next);
  std::memcpy(to + middle, from + middle, tail);
}

void fence_streamed() { _mm_sfence(); }

#else

void stream_block(const BlockCopy& block, const std::byte*) { std::memcpy(block.to, block.from, block.length); }
void fence_streamed() {}

#endif

void copy_blocks(std::span<const BlockCopy> blocks, Stores stores) {
  if (stores == Stores::kStreaming) {
    copy_streaming(blocks);
  } else {
    copy_cached(blocks);
  }
}

}  // namespace kvferry
