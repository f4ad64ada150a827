// Bytes in several runs of memory, one behind the other: copied between differently cut runs, and digested on the way.
// Pure functions on memory; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/block_copy.h"
#include "kvferry/status.h"
#include "kvferry/store.h"

namespace kvferry::store {

std::uint64_t total_bytes(ConstPieces runs);  // of runs that were measured, or come from the node's places
std::uint64_t total_bytes(Pieces runs);

// How many bytes they have together. Not OK: there is no such memory, for a run does not end in the address space, or
// the sum is no 64-bit number. For runs that a program names.
Result<std::uint64_t> measure(ConstPieces runs);
Result<std::uint64_t> measure(Pieces runs);

ContentDigest digest_of(ConstPieces runs);

// Copies as many bytes as both sides have. `stores`: what suits all that the caller copies at once. What was written is
// visible to whoever sees a later atomic release, lock or message of this thread.
void copy_runs(ConstPieces from, Pieces to, Stores stores);
void copy_runs(ConstPieces from, Pieces to);  // nothing else at once

// The same, and the digest of what was copied, at the cost of reading it once.
ContentDigest copy_and_digest(ConstPieces from, Pieces to, Stores stores);
ContentDigest copy_and_digest(ConstPieces from, Pieces to);

// The `length` bytes from `offset` on. They must be there.
std::vector<std::span<const std::byte>> cut(ConstPieces runs, std::uint64_t offset, std::uint64_t length);
std::vector<std::span<std::byte>> cut(Pieces runs, std::uint64_t offset, std::uint64_t length);

}  // namespace kvferry::store
