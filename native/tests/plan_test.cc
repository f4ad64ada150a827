#include "engine/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "engine/plan_builder.h"
#include "engine_fixture.h"
#include "memory/region_table.h"

namespace kvferry::testing {
namespace {

// Plans need a table of our regions and a list of the peer's, no peer.
class PlanTest : public ::testing::Test {
 protected:
  PlanTest() : table_(nullptr, false), memory_(kBytes) {
    near_ = *table_.add({memory_.data(), kBytes, "near", kRemoteRead, MemoryKind::kHost, 0, 0});
    far_ = {{7, 3}, kBytes, MemoryKind::kHost, kRemoteRead | kRemoteWrite, "far"};
    remote_ = {far_};
  }
  PlanImpl::Target target(SliceShape shape = {}) const { return {nullptr, table_, remote_, shape}; }
  Result<std::shared_ptr<const PlanImpl>> blocks(std::vector<BlockList> local, std::vector<BlockList> remote,
                                                 const std::vector<std::int32_t>& here,
                                                 const std::vector<std::int32_t>& there) const {
    return PlanImpl::build_blocks(target(), {local, remote, here, there}, Op::kRead);
  }
  BlockList list(std::uint32_t region, std::uint64_t offset = 0, std::uint64_t count = 16) const {
    return {region, offset, 4096, 4096, count};
  }
  // The pieces that each run covers, as a set for each piece: which bytes of the peer's region.
  static std::uint64_t bytes_in(const PlanImpl& plan) {
    std::uint64_t bytes = 0;
    for (const PlanSlice& slice : plan.slices()) {
      std::uint64_t in_slice = 0;
      for (const RunOp& run : plan.runs_of(slice)) in_slice += run.length;
      EXPECT_EQ(in_slice, slice.bytes);
      bytes += in_slice;
    }
    return bytes;
  }

  static constexpr std::uint64_t kBytes = 16u << 20;
  RegionTable table_;
  std::vector<std::byte> memory_;
  RegionInfo near_, far_;
  std::vector<RegionInfo> remote_;
};

TEST_F(PlanTest, SlicesAreNamedOnceAndForAll) {
  std::vector<Piece> pieces{{near_.key.id, 7, 0, 0, kBytes}};
  const auto one = PlanImpl::build(target(), pieces, Op::kRead);
  const auto other = PlanImpl::build(target(), pieces, Op::kRead);
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ((*one)->runs(), 1u);
  EXPECT_EQ((*one)->slices().size(), 4u);
  std::set<std::uint64_t> names;
  for (const auto* plan : {&*one, &*other}) {
    for (const PlanSlice& slice : (*plan)->slices()) names.insert(slice.list);
    EXPECT_EQ(bytes_in(**plan), kBytes);
  }
  EXPECT_EQ(names.size(), 8u);
  EXPECT_EQ(names.count(0), 0u);
}

TEST_F(PlanTest, SharedWorkIsCutSmallerTowardsTheEnd) {
  const std::vector<Piece> pieces{{near_.key.id, 7, 0, 0, kBytes}};
  const auto plan = PlanImpl::build(target({4u << 20, 2}), pieces, Op::kRead);
  ASSERT_TRUE(plan.ok());
  const auto& slices = (*plan)->slices();
  EXPECT_EQ(slices.front().bytes, 4u << 20);
  EXPECT_LE(slices.back().bytes, 256u << 10);
  EXPECT_TRUE(std::is_sorted(slices.begin(), slices.end(),
                             [](const PlanSlice& a, const PlanSlice& b) { return a.bytes > b.bytes; }));
  EXPECT_EQ(bytes_in(**plan), kBytes);
}

TEST_F(PlanTest, NoSliceIsTooSmallForARailOfItsOwn) {
  constexpr std::uint64_t kLeast = 2u << 20;
  const std::vector<Piece> pieces{{near_.key.id, 7, 0, 0, kBytes}};
  const auto plan = PlanImpl::build(target({4u << 20, 4, kLeast}), pieces, Op::kRead);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(bytes_in(**plan), kBytes);
  const auto& slices = (*plan)->slices();
  for (std::size_t i = 0; i + 1 < slices.size(); ++i) EXPECT_GE(slices[i].bytes, kLeast);  // the last is what is left
  EXPECT_GT(slices.size(), 4u);
  const std::vector<Piece> small{{near_.key.id, 7, 0, 0, kLeast}};
  const auto alone = PlanImpl::build(target({4u << 20, 4, kLeast}), small, Op::kRead);
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ((*alone)->slices().size(), 1u);
}

TEST_F(PlanTest, PiecesThatFitASliceStayWhole) {
  std::vector<Piece> pieces;
  const std::uint64_t length = 100'000;
  for (std::uint64_t i = 0; i < 100; ++i) pieces.push_back({near_.key.id, 7, i * length, i * length, length});
  const auto plan = PlanImpl::build(target({1u << 20, 1}), pieces, Op::kRead);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ((*plan)->runs(), 1u);  // contiguous on both sides
  for (const RunOp& run : (*plan)->run_list()) EXPECT_EQ(run.length % length, 0u);
  EXPECT_EQ((*plan)->slices().size(), 10u);
}

TEST_F(PlanTest, ARunKnowsExactlyThePiecesItCovers) {
  // Piece 1 is longer than a slice: its runs cover nothing but it.
  const std::uint64_t big = 3u << 20;
  const std::vector<Piece> pieces{{near_.key.id, 7, big, big, 1u << 20}, {near_.key.id, 7, 0, 0, big}};
  const auto plan = PlanImpl::build(target({1u << 20, 1}), pieces, Op::kRead);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ((*plan)->runs(), 1u);
  ASSERT_EQ((*plan)->run_list().size(), 4u);
  for (std::uint32_t run = 0; run < 4; ++run) {
    std::vector<std::uint32_t> covered;
    (*plan)->for_each_piece(run, [&](std::uint32_t piece) { covered.push_back(piece); });
    EXPECT_EQ(covered, std::vector<std::uint32_t>{run < 3 ? 1u : 0u}) << run;
  }
}

TEST_F(PlanTest, RunsPerSliceAreBounded) {
  std::vector<Piece> pieces;
  for (std::uint64_t i = 0; i < 5000; ++i) pieces.push_back({near_.key.id, 7, i * 128, i * 128, 64});
  const auto plan = PlanImpl::build(target(), pieces, Op::kRead);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ((*plan)->runs(), 5000u);
  EXPECT_EQ((*plan)->slices().size(), 5u);
  for (const PlanSlice& slice : (*plan)->slices()) EXPECT_LE(slice.run_count, 1024u);
}

TEST_F(PlanTest, AnEmptyPlanHasOneEmptySlice) {
  const std::vector<Piece> pieces{{near_.key.id, 7, 0, 0, 0}};
  const auto plan = PlanImpl::build(target(), pieces, Op::kRead);
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ((*plan)->slices().size(), 1u);
  EXPECT_EQ((*plan)->slices()[0].run_count, 0u);
  EXPECT_EQ((*plan)->pieces(), 1u);
}

// Two regions may lie side by side in memory: where one ends and the next begins, a run ends, too.
TEST_F(PlanTest, RunsNeverCrossRegionsThoughAPieceOfNoBytesComesBetween) {
  std::vector<std::byte> both(8192);
  const RegionInfo first = *table_.add({both.data(), 4096, "first", kRemoteRead, MemoryKind::kHost, 0, 0});
  const RegionInfo second = *table_.add({both.data() + 4096, 4096, "second", kRemoteRead, MemoryKind::kHost, 0, 0});
  const std::vector<Piece> pieces{
      {first.key.id, 7, 0, 0, 4096}, {second.key.id, 7, 0, 4096, 0}, {second.key.id, 7, 0, 4096, 4096}};
  const auto plan = PlanImpl::build(target(), pieces, Op::kRead);
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ((*plan)->run_list().size(), 2u);
  EXPECT_EQ((*plan)->run_list()[1].local, both.data() + 4096);
}

TEST_F(PlanTest, BlocksMeanTheSameAsPieces) {
  const std::vector<std::int32_t> here{5, 0, 9, 3}, there{8, 2, 3, 15};
  const std::vector<std::uint64_t> layers{0, 1u << 20};
  std::vector<BlockList> local, remote;
  std::vector<Piece> pieces;
  for (const std::uint64_t base : layers) {
    local.push_back(list(near_.key.id, base));
    remote.push_back(list(7, base + 4096));
    for (std::size_t i = 0; i < here.size(); ++i) {
      pieces.push_back({near_.key.id, 7, base + static_cast<std::uint64_t>(here[i]) * 4096,
                        base + 4096 + static_cast<std::uint64_t>(there[i]) * 4096, 4096});
    }
  }
  const auto by_index = blocks(local, remote, here, there);
  const auto by_piece = PlanImpl::build(target(), pieces, Op::kRead);
  ASSERT_TRUE(by_index.ok() && by_piece.ok()) << by_index.status().to_string();
  EXPECT_EQ((*by_index)->pieces(), 8u);
  EXPECT_EQ((*by_index)->bytes(), 8u * 4096);
  ASSERT_EQ((*by_index)->run_list().size(), (*by_piece)->run_list().size());
  for (std::uint32_t run = 0; run < (*by_index)->run_list().size(); ++run) {
    const RunOp &a = (*by_index)->run_list()[run], &b = (*by_piece)->run_list()[run];
    EXPECT_EQ(a.local, b.local);
    EXPECT_EQ(a.remote, b.remote);
    EXPECT_EQ(a.remote_offset, b.remote_offset);
    EXPECT_EQ(a.length, b.length);
    std::vector<std::uint32_t> covers_a, covers_b;
    (*by_index)->for_each_piece(run, [&](std::uint32_t piece) { covers_a.push_back(piece); });
    (*by_piece)->for_each_piece(run, [&](std::uint32_t piece) { covers_b.push_back(piece); });
    EXPECT_EQ(covers_a, covers_b);
  }
}

TEST_F(PlanTest, NeighbouringBlocksMeetWhateverTheirOrder) {
  const std::vector<std::int32_t> here{3, 1, 2, 0}, there{7, 5, 6, 4};
  const auto plan = blocks({list(near_.key.id)}, {list(7)}, here, there);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ((*plan)->runs(), 1u);
  EXPECT_EQ((*plan)->run_list()[0].length, 4u * 4096);
}

TEST_F(PlanTest, ASizeThatNoNumberHoldsIsRefused) {
  std::uint64_t bytes = 5;
  EXPECT_TRUE(PlanImpl::add_bytes(&bytes, 1ull << 40, 1ull << 20).ok());
  EXPECT_EQ(bytes, (1ull << 60) + 5);
  EXPECT_EQ(PlanImpl::add_bytes(&bytes, 1ull << 40, 1ull << 24).code(), Code::kInvalidArgument);        // alone
  EXPECT_EQ(PlanImpl::add_bytes(&bytes, UINT64_MAX - (1ull << 60), 1).code(), Code::kInvalidArgument);  // together
}

TEST_F(PlanTest, BlockListsAreChecked) {
  const std::uint32_t near = near_.key.id;
  const std::uint64_t too_many = kBytes / 4096 + 1;
  const auto code = [&](const BlockList& local, const BlockList& remote, std::vector<std::int32_t> here = {0},
                        std::vector<std::int32_t> there = {0}) {
    const auto plan = blocks({local}, {remote}, here, there);
    return plan.ok() ? Code::kOk : plan.status().code();
  };
  EXPECT_EQ(code(list(near), list(7)), Code::kOk);
  EXPECT_EQ(code(list(99), list(7)), Code::kNotFound);
  EXPECT_EQ(code(list(near), list(99)), Code::kNotFound);
  EXPECT_EQ(code(list(near, 0, too_many), list(7)), Code::kOutOfRange);
  EXPECT_EQ(code(list(near), list(7, kBytes - 4096)), Code::kOutOfRange);
  EXPECT_EQ(code(list(near), list(7), {16}, {0}), Code::kOutOfRange);
  EXPECT_EQ(code(list(near), list(7), {0}, {-1}), Code::kOutOfRange);
  EXPECT_EQ(code(list(near), list(7), {0, 1}, {0}), Code::kInvalidArgument);
  EXPECT_EQ(code(list(near, 0, 0), list(7)), Code::kOutOfRange);
  EXPECT_EQ(code({near, 0, 4096, 4095, 2}, list(7)), Code::kInvalidArgument);        // overlapping
  EXPECT_EQ(code({near, 0, 2048, 4096, 2}, list(7)), Code::kInvalidArgument);        // other size
  EXPECT_EQ(code({near, 0, 4096, UINT64_MAX, 3}, list(7)), Code::kInvalidArgument);  // wraps
  EXPECT_EQ(code({near, 0, 4096, 4096, UINT64_MAX}, list(7)), Code::kInvalidArgument);
  EXPECT_EQ(blocks({list(near)}, {}, {}, {}).status().code(), Code::kInvalidArgument);
  remote_[0].access = kRemoteWrite;
  EXPECT_EQ(code(list(near), list(7)), Code::kPermissionDenied);
}

}  // namespace
}  // namespace kvferry::testing
