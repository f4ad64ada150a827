#if defined(__x86_64__)

#include <immintrin.h>

#include "base/xxh3_kernels.h"

static_assert(XXH_VECTOR >= XXH_AVX2, "compile this file with -mavx2 (native/CMakeLists.txt)");

namespace kvferry {
namespace {

// How far ahead of the copy the source is fetched: as in block_copy.cc.
constexpr size_t kAhead = 4096;

struct Accumulators {  // the state's, in registers
  __m256i first, second;
};

// XXH3's step for half a stripe, as XXH3_accumulate_512_avx2() has it.
inline __m256i add_half(__m256i accumulator, __m256i data, const unsigned char* secret) {
  const __m256i keyed = _mm256_xor_si256(data, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(secret)));
  const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
  const __m256i swapped = _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));
  return _mm256_add_epi64(product, _mm256_add_epi64(accumulator, swapped));
}

// What is loaded once goes both ways: the digest is done by the time the stores have drained.
inline void take_stripes(Accumulators* sums, const unsigned char* from, unsigned char* to, const unsigned char* secret,
                         size_t stripes, const unsigned char* ahead) {
  constexpr size_t kHalf = sizeof(__m256i);
  Accumulators now = *sums;
  for (size_t i = 0; i < stripes; ++i) {
    const unsigned char* const stripe = from + i * XXH_STRIPE_LEN;
    auto* const target = reinterpret_cast<__m256i*>(to + i * XXH_STRIPE_LEN);
    _mm_prefetch(ahead + i * XXH_STRIPE_LEN, _MM_HINT_NTA);
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(stripe));
    const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(stripe + kHalf));
    _mm256_stream_si256(target, first);
    _mm256_stream_si256(target + 1, second);
    now.first = add_half(now.first, first, secret + i * XXH_SECRET_CONSUME_RATE);
    now.second = add_half(now.second, second, secret + i * XXH_SECRET_CONSUME_RATE + kHalf);
  }
  *sums = now;
}

const unsigned char* secret_of(const XXH3_state_t* state) {
  return state->extSecret == nullptr ? state->customSecret : state->extSecret;
}

// The first bytes, which complete the state's buffer, and the buffer with them.
size_t complete_buffer(XXH3_state_t* state, const unsigned char* from, unsigned char* to) {
  const size_t length = xxh3_bytes_to_complete(state);
  if (state->bufferedSize == 0) return 0;
  XXH_memcpy(to, from, length);
  XXH_memcpy(state->buffer + state->bufferedSize, from, length);
  XXH3_consumeStripes(state->acc, &state->nbStripesSoFar, state->nbStripesPerBlock, state->buffer,
                      XXH3_INTERNALBUFFER_SIZE / XXH_STRIPE_LEN, secret_of(state), state->secretLimit, XXH3_accumulate,
                      XXH3_scrambleAcc);
  return length;
}

// As XXH3_update(): after it the state holds back the last 1 to 64 bytes, and the stripe before them.
void update_and_stream(XXH3_state_t* state, const unsigned char* from, size_t length, unsigned char* to) {
  const unsigned char* const end = from + length;
  const size_t head = complete_buffer(state, from, to);
  from += head;
  to += head;
  const unsigned char* const secret = secret_of(state);
  auto* const kept = reinterpret_cast<Accumulators*>(state->acc);
  size_t stripes = static_cast<size_t>(end - from - 1) / XXH_STRIPE_LEN;
  size_t in_block = state->nbStripesSoFar;
  while (stripes > 0) {
    const size_t left_in_block = state->nbStripesPerBlock - in_block;
    const size_t step = stripes < left_in_block ? stripes : left_in_block;
    const size_t bytes = step * XXH_STRIPE_LEN;
    const unsigned char* const ahead = static_cast<size_t>(end - from) > kAhead + bytes ? from + kAhead : end - bytes;
    take_stripes(kept, from, to, secret + in_block * XXH_SECRET_CONSUME_RATE, step, ahead);
    from += bytes;
    to += bytes;
    stripes -= step;
    in_block += step;
    if (in_block < state->nbStripesPerBlock) continue;
    in_block = 0;
    XXH3_scrambleAcc(state->acc, secret + state->secretLimit);
  }
  state->nbStripesSoFar = in_block;
  state->totalLen += length;
  const size_t tail = static_cast<size_t>(end - from);
  XXH_memcpy(to, from, tail);
  XXH_memcpy(state->buffer + XXH3_INTERNALBUFFER_SIZE - XXH_STRIPE_LEN, from - XXH_STRIPE_LEN, XXH_STRIPE_LEN);
  XXH_memcpy(state->buffer, from, tail);
  state->bufferedSize = static_cast<XXH32_hash_t>(tail);
}

}  // namespace

const Xxh3Kernels kXxh3Avx2 = KVF_XXH3_KERNELS(update_and_stream);

}  // namespace kvferry

#endif
