#include "store/runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace kvferry::store {
namespace {

std::vector<std::byte> random_bytes(std::size_t length, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(length);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Cuts memory at random places; some runs are empty.
template <typename Byte>
std::vector<std::span<Byte>> cut_anywhere(std::span<Byte> memory, std::mt19937_64& random) {
  std::vector<std::span<Byte>> runs;
  while (!memory.empty()) {
    const std::size_t length = std::min<std::size_t>(memory.size(), random() % (memory.size() / 3 + 2));
    runs.push_back(memory.first(length));
    memory = memory.subspan(length);
  }
  return runs;
}

TEST(Runs, AreCopiedHoweverTheyAreCut) {
  for (const std::size_t length : {0u, 1u, 4095u, 300000u, 2500000u}) {
    std::mt19937_64 random(length);
    const std::vector<std::byte> source = random_bytes(length, length + 1);
    for (int round = 0; round < 5; ++round) {
      std::vector<std::byte> target(length);
      const auto from = cut_anywhere<const std::byte>(source, random);
      const auto to = cut_anywhere<std::byte>(target, random);
      const Stores stores = round % 2 == 0 ? Stores::kCached : Stores::kStreaming;
      const ContentDigest digest = copy_and_digest(from, to, stores);
      EXPECT_EQ(target, source);
      std::fill(target.begin(), target.end(), std::byte{0});
      copy_runs(from, to, stores);
      EXPECT_EQ(target, source);
      const std::span<const std::byte> whole(source);
      EXPECT_EQ(digest, digest_of({&whole, 1}));
      EXPECT_EQ(digest, digest_of(from));
    }
  }
}

TEST(Runs, ThatNoMemoryCouldHoldAreRefused) {
  std::byte some[16] = {};
  const auto run = [&](std::uint64_t bytes) { return std::span<const std::byte>(some, bytes); };
  const std::vector<std::span<const std::byte>> few = {run(8), run(0), run(3)};
  EXPECT_EQ(*measure(ConstPieces(few)), 11U);
  const std::vector<std::span<const std::byte>> outside = {run(8), run(UINT64_MAX - 7)};
  EXPECT_EQ(measure(ConstPieces(outside)).status().code(), Code::kInvalidArgument);
  const std::uint64_t most = UINT64_MAX - reinterpret_cast<std::uintptr_t>(some);
  const std::vector<std::span<const std::byte>> longest = {run(most)};
  EXPECT_EQ(*measure(ConstPieces(longest)), most);
  const std::vector<std::span<const std::byte>> wrapping = {run(most), run(UINT64_MAX - most), run(9)};
  const auto refused = measure(ConstPieces(wrapping));
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("more than 2^64"), std::string::npos) << refused.status().message();
}

TEST(Runs, OfUnequalLengthStopAtTheShorter) {
  const std::vector<std::byte> source = random_bytes(100, 1);
  std::vector<std::byte> target(60);
  const std::span<const std::byte> from(source);
  const std::span<std::byte> to(target);
  copy_runs({&from, 1}, {&to, 1});
  EXPECT_TRUE(std::equal(target.begin(), target.end(), source.begin()));
}

TEST(Runs, AreCutWhereAsked) {
  std::vector<std::byte> memory = random_bytes(1000, 2);
  std::mt19937_64 random(3);
  const auto runs = cut_anywhere<const std::byte>(memory, random);
  for (const auto& [offset, length] : {std::pair{0u, 1000u}, {0u, 0u}, {999u, 1u}, {123u, 500u}}) {
    std::vector<std::byte> joined;
    for (const auto& run : cut(runs, offset, length)) joined.insert(joined.end(), run.begin(), run.end());
    EXPECT_TRUE(std::equal(joined.begin(), joined.end(), memory.begin() + offset, memory.begin() + offset + length));
  }
}

}  // namespace
}  // namespace kvferry::store
