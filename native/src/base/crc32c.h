// CRC-32C (Castagnoli, RFC 3720 appendix B.4): polynomial 0x1EDC6F41 reflected, initial value and final xor all ones.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace kvferry {

// crc32c(b, crc32c(a)) == crc32c(a || b). Uses the SSE4.2 or ARMv8 instruction where the processor has it.
std::uint32_t crc32c(ByteView bytes, std::uint32_t seed = 0);
std::uint32_t crc32c_portable(ByteView bytes, std::uint32_t seed = 0);
bool crc32c_is_accelerated();

}  // namespace kvferry
