// Copies for mapped peer memory. Pure functions on memory; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvferry {

// From this many bytes per operation on, streaming stores win: the target will not stay in the cache anyway, and they
// skip reading it first. Measured crossover: between 0.5 and 8 MiB.
inline constexpr std::uint64_t kStreamFromBytes = 1u << 20;
// Below this many bytes per run the set-up of a streaming copy costs more than it saves.
inline constexpr std::size_t kStreamMinRunBytes = 4096;

void copy_cached(std::byte* to, const std::byte* from, std::size_t length);
// Non-temporal AVX2 stores where the processor has them, else as copy_cached. Visible to other threads and processes
// once the function has returned and a lock, socket or atomic release follows.
void copy_streaming(std::byte* to, const std::byte* from, std::size_t length);

}  // namespace kvferry
