// The compression function of SHA-256 over whole blocks of 64 bytes: portable, or by the processor's SHA instructions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvferry {

using Sha256State = std::array<std::uint32_t, 8>;
inline constexpr Sha256State kSha256Start{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

void sha256_blocks(Sha256State& state, const std::byte* data, std::size_t blocks);
void sha256_blocks_portable(Sha256State& state, const std::byte* data, std::size_t blocks);
bool sha256_is_accelerated();

}  // namespace kvferry
