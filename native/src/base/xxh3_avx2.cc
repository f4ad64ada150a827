#if defined(__x86_64__)

#include "base/xxh3_kernels.h"

static_assert(XXH_VECTOR >= XXH_AVX2, "compile this file with -mavx2 (native/CMakeLists.txt)");

namespace kvferry {

const Xxh3Kernels kXxh3Avx2 = KVF_XXH3_KERNELS;

}  // namespace kvferry

#endif
