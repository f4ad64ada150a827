#include "store/runs.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/xxh3.h"

namespace kvferry::store {
namespace {

// Copied while it is still in the cache from being digested.
constexpr std::size_t kCachedStep = 2048;
constexpr std::size_t kShortestStreamed = 4096;

template <typename Runs>
std::uint64_t sum(Runs runs) {
  std::uint64_t total = 0;
  for (const auto& run : runs) total += run.size();
  return total;
}

template <typename Runs>
Result<std::uint64_t> measured(Runs runs) {
  std::uint64_t total = 0;
  for (const auto& run : runs) {
    if (run.size() > UINT64_MAX - reinterpret_cast<std::uintptr_t>(run.data())) {
      return {Code::kInvalidArgument, "a piece of " + std::to_string(run.size()) + " bytes leaves the address space"};
    }
    if (__builtin_add_overflow(total, run.size(), &total)) {
      return {Code::kInvalidArgument, "the pieces add up to more than 2^64 bytes"};
    }
  }
  return total;
}

// Calls visit(from, to, length) for each stretch that lies in one run on both sides, of at most `longest` bytes.
template <typename Visit>
void walk(ConstPieces from, Pieces to, std::size_t longest, Visit visit) {
  std::size_t source = 0;
  std::size_t target = 0;
  std::size_t read = 0;
  std::size_t written = 0;
  while (source < from.size() && target < to.size()) {
    const std::size_t length = std::min({from[source].size() - read, to[target].size() - written, longest});
    if (length > 0) visit(from[source].data() + read, to[target].data() + written, length);
    read += length;
    written += length;
    if (read == from[source].size()) ++source, read = 0;
    if (target < to.size() && written == to[target].size()) ++target, written = 0;
  }
}

Stores suitable(ConstPieces from, Pieces to) { return stores_for(std::min(total_bytes(from), total_bytes(to))); }

ContentDigest as_content(const Hash128& hash) { return {hash.high, hash.low}; }

template <typename Byte>
std::vector<std::span<Byte>> cut_runs(std::span<const std::span<Byte>> runs, std::uint64_t offset,
                                      std::uint64_t length) {
  std::vector<std::span<Byte>> out;
  for (const std::span<Byte> run : runs) {
    if (length == 0) break;
    if (offset >= run.size()) {
      offset -= run.size();
      continue;
    }
    const std::uint64_t taken = std::min<std::uint64_t>(run.size() - offset, length);
    out.push_back(run.subspan(offset, taken));
    offset = 0;
    length -= taken;
  }
  return out;
}

}  // namespace

std::uint64_t total_bytes(ConstPieces runs) { return sum(runs); }
std::uint64_t total_bytes(Pieces runs) { return sum(runs); }

Result<std::uint64_t> measure(ConstPieces runs) { return measured(runs); }
Result<std::uint64_t> measure(Pieces runs) { return measured(runs); }

ContentDigest digest_of(ConstPieces runs) {
  Xxh3 hash;
  if (runs.size() == 1) return as_content(xxh3_128(runs[0]));
  for (const auto& run : runs) hash.update(run);
  return as_content(hash.digest_128());
}

void copy_runs(ConstPieces from, Pieces to, Stores stores) {
  std::vector<BlockCopy> copies;
  walk(from, to, SIZE_MAX, [&](const std::byte* source, std::byte* target, std::size_t length) {
    copies.push_back({target, source, length});
  });
  copy_blocks(copies, stores);
}

void copy_runs(ConstPieces from, Pieces to) { copy_runs(from, to, suitable(from, to)); }

ContentDigest copy_and_digest(ConstPieces from, Pieces to, Stores stores) {
  Xxh3 hash;
  walk(from, to, SIZE_MAX, [&](const std::byte* source, std::byte* target, std::size_t length) {
    if (stores == Stores::kStreaming && length >= kShortestStreamed) {
      return hash.update_and_stream({source, length}, target);
    }
    for (std::size_t at = 0; at < length; at += kCachedStep) {
      const std::size_t step = std::min(kCachedStep, length - at);
      hash.update({source + at, step});
      std::memcpy(target + at, source + at, step);
    }
  });
  if (stores == Stores::kStreaming) fence_streamed();
  return as_content(hash.digest_128());
}

ContentDigest copy_and_digest(ConstPieces from, Pieces to) { return copy_and_digest(from, to, suitable(from, to)); }

std::vector<std::span<const std::byte>> cut(ConstPieces runs, std::uint64_t offset, std::uint64_t length) {
  return cut_runs<const std::byte>(runs, offset, length);
}

std::vector<std::span<std::byte>> cut(Pieces runs, std::uint64_t offset, std::uint64_t length) {
  return cut_runs<std::byte>(runs, offset, length);
}

}  // namespace kvferry::store
