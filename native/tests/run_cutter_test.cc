#include "transport/file/run_cutter.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace kvferry {
namespace {

constexpr std::uint64_t kUnit = 4096;

std::vector<FilePart> cut(const FileGeometry& geometry, Op op, std::uint64_t address, std::uint64_t offset,
                          std::uint64_t length) {
  std::vector<FilePart> parts;
  RunCutter cutter(geometry, op, reinterpret_cast<const std::byte*>(address), offset, length);
  while (!cutter.done()) parts.push_back(cutter.next());
  return parts;
}

using Case = std::tuple<Op, std::uint64_t, std::uint64_t, std::uint64_t>;  // op, address, offset, length
class RunCutterTest : public ::testing::TestWithParam<Case> {};

// What every cut must be: the run's bytes once each and in order, direct parts aligned in every way.
TEST_P(RunCutterTest, CoversTheRunWithLegalParts) {
  const auto [op, address, offset, length] = GetParam();
  std::uint64_t at = 0;
  for (const FilePart& part : cut({true, kUnit, 512}, op, address, offset, length)) {
    ASSERT_EQ(part.begin, at);
    ASSERT_GT(part.length, 0u);
    at += part.length;
    ASSERT_LE(part.io_offset, offset + part.begin);
    ASSERT_GE(part.io_offset + part.io_length, offset + part.begin + part.length);
    if (part.how == FilePart::How::kBuffered) {
      EXPECT_EQ(op, Op::kWrite) << "reads may take the surroundings, too";
      EXPECT_EQ(part.io_length, part.length);
      EXPECT_LT(part.length, kUnit);
      continue;
    }
    EXPECT_EQ(part.io_offset % kUnit, 0u);
    EXPECT_EQ(part.io_length % kUnit, 0u);
    EXPECT_TRUE(op == Op::kRead || part.io_length == part.length) << "a write touches nothing else";
    if (part.how == FilePart::How::kDirect) {
      EXPECT_EQ((address + part.begin) % 512, 0u);
      EXPECT_EQ(part.io_length, part.length);
      EXPECT_LE(part.length, kRequestBytes);
    } else {
      EXPECT_LE(part.io_length, kBounceBytes);
    }
  }
  EXPECT_EQ(at, length);
}

INSTANTIATE_TEST_SUITE_P(Grid, RunCutterTest,
                         ::testing::Combine(::testing::Values(Op::kRead, Op::kWrite),
                                            ::testing::Values(1u << 20, (1u << 20) + 512, (1u << 20) + 1),
                                            ::testing::Values(0u, 1u, 512u, 4095u, 4096u, 1234567u, 5ull << 32),
                                            ::testing::Values(1u, 511u, 4095u, 4096u, 4097u, 65536u, 65537u, 262144u,
                                                              262145u, (1u << 20) + 4095u)));

TEST(RunCutter, MovesAlignedRunsWithoutACopy) {
  for (const Op op : {Op::kRead, Op::kWrite}) {
    for (const FilePart& part : cut({true, kUnit, 512}, op, 1 << 20, 8192, 1 << 20)) {
      EXPECT_EQ(part.how, FilePart::How::kDirect);
    }
  }
}

TEST(RunCutter, BouncesOnlyWhatAlignmentForces) {
  const auto whole = cut({true, kUnit, 512}, Op::kWrite, (1 << 20) + 1, 0, 8192);  // unaligned memory
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(whole[0].how, FilePart::How::kBounced);
  const auto ends = cut({true, kUnit, 512}, Op::kWrite, (1 << 20) + 512, 512, 8192);  // equally unaligned
  ASSERT_EQ(ends.size(), 3u);
  EXPECT_EQ(ends[0].how, FilePart::How::kBuffered);
  EXPECT_EQ(ends[1].how, FilePart::How::kDirect);
  EXPECT_EQ(ends[2].how, FilePart::How::kBuffered);
}

TEST(RunCutter, ReadsASmallUnalignedRunByOneRequest) {
  EXPECT_EQ(cut({true, kUnit, 512}, Op::kRead, 1 << 20, 4000, 4099).size(), 1u);
}

TEST(RunCutter, LeavesAlignmentToThePageCacheWhereThereIsNoDirectAccess) {
  const auto parts = cut({false, kUnit, 1}, Op::kRead, 7, 13, kRequestBytes + 5);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].how, FilePart::How::kBuffered);
  EXPECT_EQ(parts[1].io_length, 5u);
}

}  // namespace
}  // namespace kvferry
