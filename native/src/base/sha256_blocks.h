// The compression function of SHA-256 over whole blocks of 64 bytes: portable, or by the processor's SHA instructions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvferry {

using Sha256State = std::array<std::uint32_t, 8>;

void sha256_blocks(Sha256State& state, const std::byte* data, std::size_t blocks);
void sha256_blocks_portable(Sha256State& state, const std::byte* data, std::size_t blocks);
bool sha256_is_accelerated();

}  // namespace kvferry
