// XXH3 compiled into the file that includes this, for whatever instructions that file may use. Two files do: xxh3.cc,
// and xxh3_avx2.cc, which the build compiles with -mavx2. No header of the C++ library with inline functions
// may come in here: the linker keeps one copy of each, which then might need AVX2 everywhere.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define XXH_INLINE_ALL
#include <xxhash/xxhash.h>

namespace kvferry {

struct Xxh3Kernels {
  uint64_t (*hash_64)(const void* data, size_t length, uint64_t seed);
  XXH128_hash_t (*hash_128)(const void* data, size_t length, uint64_t seed);
  XXH128_hash_t (*hash_128_keyed)(const void* data, size_t length, const void* secret, size_t secret_bytes);
  XXH_errorcode (*update)(XXH3_state_t* state, const void* data, size_t length);
  // As `update`, and copies the bytes to `to` with streaming stores. More than kXxh3StreamedBytes; what follows the
  // bytes that complete the state's buffer (xxh3_bytes_to_complete) goes to a whole cache line. Null: there is none.
  void (*update_and_stream)(XXH3_state_t* state, const unsigned char* from, size_t length, unsigned char* to);
};

enum { kXxh3StreamedBytes = XXH3_INTERNALBUFFER_SIZE + XXH_STRIPE_LEN };

// The state keeps the last bytes of each update until more come.
static inline size_t xxh3_bytes_to_complete(const XXH3_state_t* state) {
  return state->bufferedSize == 0 ? 0 : XXH3_INTERNALBUFFER_SIZE - state->bufferedSize;
}

extern const Xxh3Kernels kXxh3Avx2;

}  // namespace kvferry

// The functions are local to each file, hence a macro.
#define KVF_XXH3_KERNELS(update_and_stream) \
  { XXH3_64bits_withSeed, XXH3_128bits_withSeed, XXH3_128bits_withSecret, XXH3_128bits_update, update_and_stream }
