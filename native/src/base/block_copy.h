// Copies of scattered blocks between mapped memories. Pure functions on memory; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvferry {

struct BlockCopy {  // the two ranges do not overlap
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t length = 0;
};

// Which stores a copy uses. Streaming stores go past the cache: they need not read the target first, so they win once
// the bytes would not stay in the cache anyway, and lose before that.
enum class Stores : std::uint8_t { kCached, kStreaming };

// The better one for an operation that moves this many bytes in all. The crossover was measured between 0.5 and 4 MiB,
// with the same memory copied again and again; memory that is cold at first favours streaming from 64 KiB on.
constexpr Stores stores_for(std::uint64_t operation_bytes) {
  return operation_bytes >= (1u << 20) ? Stores::kStreaming : Stores::kCached;
}

// In the order given. Lines of the next block are prefetched while one is copied: scattered small blocks would
// otherwise wait for memory at the start of each. What streaming stores wrote is visible to whoever sees a later atomic
// release, lock or message of this thread.
void copy_blocks(std::span<const BlockCopy> blocks, Stores stores);

// One block with streaming stores, for callers that look at the bytes on the way: fence_streamed() must follow the last
// one, and only then holds what copy_blocks says. From `next` on, as many bytes are fetched for what is copied after
// it.
void stream_block(const BlockCopy& block, const std::byte* next);
void fence_streamed();

}  // namespace kvferry
