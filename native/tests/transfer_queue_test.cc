#include "engine/transfer_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "engine/plan_builder.h"
#include "engine_fixture.h"

namespace kvferry::testing {
namespace {

constexpr std::uint64_t kSlice = 4u << 20;

// A transfer without a peer: enough for being queued. `slices` of `bytes` each.
std::shared_ptr<TransferImpl> transfer_of(std::size_t slices, std::uint64_t bytes, Priority priority,
                                          std::string name = "") {
  PlanBuilder builder(nullptr, Op::kRead, slices * bytes, slices, {bytes, 1});
  for (std::size_t i = 0; i < slices; ++i) builder.add(nullptr, {1, 1}, i * 2 * bytes, bytes);  // gaps: no merging
  TransferImpl::Order order;
  order.plan = builder.finish({});
  order.notify = std::move(name);
  order.priority = priority;
  return std::make_shared<TransferImpl>(std::move(order));
}

std::vector<std::string> drain(TransferQueue& queue, std::size_t at_most = SIZE_MAX) {
  std::vector<std::string> names;
  Slice slice;
  while (names.size() < at_most && queue.take(&slice)) names.push_back(slice.transfer->notify());
  return names;
}

TEST(TransferQueue, TakesSlicesOfOneClassInTurn) {
  TransferQueue queue;
  queue.push(transfer_of(3, kSlice, Priority::kNormal, "big"));
  queue.push(transfer_of(1, 65536, Priority::kNormal, "small-1"));
  queue.push(transfer_of(1, 65536, Priority::kNormal, "small-2"));
  EXPECT_EQ(queue.queued_slices(), 5u);
  EXPECT_EQ(drain(queue), (std::vector<std::string>{"big", "small-1", "small-2", "big", "big"}));
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.queued_slices(), 0u);
}

// Case 5.5: one stream of 512 MiB and 200 requests of 64 KiB at once.
TEST(TransferQueue, SmallRequestsWaitForOneSliceOfABigStream) {
  TransferQueue queue;
  queue.push(transfer_of(128, kSlice, Priority::kNormal, "stream"));
  for (int i = 0; i < 200; ++i) queue.push(transfer_of(1, 65536, Priority::kNormal, "request"));
  const std::vector<std::string> order = drain(queue);
  ASSERT_EQ(order.size(), 328u);
  EXPECT_EQ(order[0], "stream");
  for (std::size_t i = 1; i <= 200; ++i) EXPECT_EQ(order[i], "request") << i;
}

TEST(TransferQueue, HigherClassesGoFirstAndNoneStarves) {
  TransferQueue queue;
  queue.push(transfer_of(500, kSlice, Priority::kLow, "low"));
  queue.push(transfer_of(500, kSlice, Priority::kNormal, "normal"));
  queue.push(transfer_of(500, kSlice, Priority::kHigh, "high"));
  std::map<std::string, int> share;
  const std::vector<std::string> order = drain(queue, 210);
  EXPECT_EQ(order.front(), "high");
  for (const std::string& name : order) ++share[name];
  EXPECT_EQ(share["high"], 160);  // 16 : 4 : 1
  EXPECT_EQ(share["normal"], 40);
  EXPECT_EQ(share["low"], 10);
}

TEST(TransferQueue, AClassThatDidNotWaitIsNextButEarnsNothing) {
  TransferQueue queue;
  queue.push(transfer_of(2000, kSlice, Priority::kLow, "low"));
  drain(queue, 1000);
  queue.push(transfer_of(100, kSlice, Priority::kHigh, "high"));
  const std::vector<std::string> order = drain(queue, 34);
  EXPECT_EQ(order.front(), "high");
  EXPECT_EQ(std::count(order.begin(), order.end(), "low"), 2);  // not starved by what high did not use before
}

TEST(TransferQueue, SmallTransfersOfOneClassDoNotShutOutAnother) {
  TransferQueue queue;
  for (int i = 0; i < 100; ++i) queue.push(transfer_of(1, 4096, Priority::kHigh, "high"));
  for (int i = 0; i < 2; ++i) queue.push(transfer_of(1, 4096, Priority::kLow, "low"));
  const std::vector<std::string> order = drain(queue, 34);
  EXPECT_EQ(std::count(order.begin(), order.end(), "low"), 2);
}

TEST(TransferQueue, ARestOfABrokenSliceComesBeforeNewSlices) {
  TransferQueue queue;
  queue.push(transfer_of(2, kSlice, Priority::kNormal, "broken"));
  queue.push(transfer_of(1, kSlice, Priority::kNormal, "other"));
  Slice slice;
  ASSERT_TRUE(queue.take(&slice));
  ASSERT_NE(slice.batch.list, 0u);
  ASSERT_TRUE(slice.reduce([](std::size_t) { return true; }));
  EXPECT_EQ(slice.batch.list, 0u);  // a rest has no name
  ASSERT_EQ(slice.batch.runs.size(), 1u);
  queue.push_rest(std::move(slice));
  ASSERT_TRUE(queue.take(&slice));
  EXPECT_EQ(slice.batch.list, 0u);
  EXPECT_EQ(slice.transfer->notify(), "broken");
  EXPECT_EQ(slice.batch.runs[0].length, kSlice);
  EXPECT_EQ(drain(queue), (std::vector<std::string>{"other", "broken"}));
}

TEST(TransferQueue, TheSpareLaneTakesSmallTransfersOfHighAndNormalPriority) {
  TransferQueue queue;
  queue.push(transfer_of(1, kSlice, Priority::kHigh, "big"));
  queue.push(transfer_of(1, 65536, Priority::kLow, "low"));
  EXPECT_FALSE(queue.has_for_spare());
  queue.push(transfer_of(1, 65536, Priority::kNormal, "normal-1"));
  queue.push(transfer_of(1, 65536, Priority::kNormal, "normal-2"));
  queue.push(transfer_of(1, 65536, Priority::kHigh, "high"));
  std::vector<std::string> order;
  for (Slice slice; queue.has_for_spare() && queue.take_for_spare(&slice);) order.push_back(slice.transfer->notify());
  EXPECT_EQ(order, (std::vector<std::string>{"high", "normal-1", "normal-2"}));
  Slice none;
  EXPECT_FALSE(queue.take_for_spare(&none));
  EXPECT_EQ(queue.queued_slices(), 2u);
  EXPECT_EQ(drain(queue), (std::vector<std::string>{"low", "big"}));
}

TEST(TransferQueue, RemovingATransferTakesItsRestsToo) {
  TransferQueue queue;
  const auto victim = transfer_of(3, kSlice, Priority::kHigh, "victim");
  queue.push(victim);
  queue.push(transfer_of(1, kSlice, Priority::kHigh, "other"));
  Slice slice;
  ASSERT_TRUE(queue.take(&slice));
  ASSERT_TRUE(slice.reduce([](std::size_t) { return true; }));
  queue.push_rest(std::move(slice));
  EXPECT_FALSE(queue.holds_only(victim.get()));
  std::vector<std::uint32_t> dropped;
  int rests = 0;
  queue.remove(
      victim.get(), [&](std::uint32_t run) { dropped.push_back(run); }, [&] { ++rests; });
  EXPECT_EQ(dropped, std::vector<std::uint32_t>{0});
  EXPECT_EQ(rests, 1);
  EXPECT_EQ(drain(queue), std::vector<std::string>{"other"});
}

}  // namespace
}  // namespace kvferry::testing
