// The copy loops of shared memory: every alignment and length, and not a byte beside the blocks.
#include "base/block_copy.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <vector>

namespace kvferry {
namespace {

constexpr std::byte kUntouched{0xee};

std::vector<std::byte> random_bytes(std::size_t length, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(length);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

class BlockCopies : public ::testing::TestWithParam<Stores> {};

TEST_P(BlockCopies, EveryAlignmentAndLengthIsExact) {
  constexpr std::size_t kRoom = 3 * 4096;
  const std::vector<std::byte> source = random_bytes(kRoom, 1);
  for (const std::size_t length : {0u, 1u, 63u, 64u, 127u, 4095u, 4096u, 4097u, 4223u, 8192u, 8192u + 129u}) {
    for (const std::size_t shift : {0u, 1u, 31u, 32u, 63u}) {
      std::vector<std::byte> target(kRoom + 128, kUntouched);
      const BlockCopy block{target.data() + shift, source.data() + (shift * 7) % 64, length};
      copy_blocks(std::span(&block, 1), GetParam());
      ASSERT_EQ(std::memcmp(block.to, block.from, length), 0) << length << " bytes, shifted by " << shift;
      for (std::size_t i = 0; i < target.size(); ++i) {
        if (i >= shift && i < shift + length) continue;
        ASSERT_EQ(target[i], kUntouched) << length << " bytes, shifted by " << shift << ": byte " << i;
      }
    }
  }
}

TEST_P(BlockCopies, ScatteredBlocksOfMixedSizesArrive) {
  constexpr std::size_t kSlots = 300, kSlotBytes = 20000;
  const std::vector<std::byte> source = random_bytes(kSlots * kSlotBytes, 2);
  std::vector<std::byte> target(source.size(), kUntouched);
  std::mt19937 random(3);
  std::vector<BlockCopy> blocks;
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    const std::size_t length = random() % (kSlotBytes - 64);
    const std::size_t from = slot * 7 % kSlots;  // 7 and 300 have no common divisor
    blocks.push_back({target.data() + slot * kSlotBytes + random() % 64, source.data() + from * kSlotBytes, length});
  }
  copy_blocks(blocks, GetParam());
  std::size_t untouched = target.size();
  for (const BlockCopy& block : blocks) {
    ASSERT_EQ(std::memcmp(block.to, block.from, block.length), 0);
    std::memset(block.to, 0xee, block.length);
    untouched -= block.length;
  }
  EXPECT_GT(untouched, 0u);
  for (std::size_t i = 0; i < target.size(); ++i) ASSERT_EQ(target[i], kUntouched) << i;
}

TEST_P(BlockCopies, NothingToCopyIsFine) { copy_blocks({}, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Stores, BlockCopies, ::testing::Values(Stores::kCached, Stores::kStreaming),
                         [](const auto& param_info) {
                           return param_info.param == Stores::kCached ? "Cached" : "Streaming";
                         });

TEST(StoresFor, LargeOperationsStream) {
  EXPECT_EQ(stores_for(0), Stores::kCached);
  EXPECT_EQ(stores_for(64 << 10), Stores::kCached);
  EXPECT_EQ(stores_for(8 << 20), Stores::kStreaming);
}

}  // namespace
}  // namespace kvferry
