// Random bytes from the kernel, fit for identities and nonces. Ends the process if the kernel gives none at all.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace kvferry {

void fill_random(MutableByteView out);
std::uint64_t random_u64();

}  // namespace kvferry
