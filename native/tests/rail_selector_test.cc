// Which path a lane gets while paths fail and come back.
#include "engine/rail_selector.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"

namespace kvferry {
namespace {

class FakeRail final : public Rail {
 public:
  std::string_view transport() const override { return "fake"; }
  Status execute(const Batch&, std::span<Status>, Deadline, const std::atomic<bool>&) override { return {}; }
  void interrupt() override {}
};

// A transport whose paths can be taken down.
class FakeTransport final : public Transport {
 public:
  FakeTransport(std::string name, std::vector<std::string> paths, std::size_t rails_per_path)
      : name_(std::move(name)), paths_(std::move(paths)), rails_per_path_(rails_per_path) {}

  std::string_view name() const override { return name_; }
  Status probe() const override { return {}; }
  std::vector<Path> paths(const PeerContext&) const override {
    std::vector<Path> out;
    for (const std::string& path : paths_) out.push_back({path, std::nullopt, {}});
    return out;
  }
  std::size_t rails_per_path() const override { return rails_per_path_; }
  Result<std::unique_ptr<Rail>> open_rail(const PeerContext& peer, Deadline) override {
    ++openings[peer.path.name];
    if (down[peer.path.name]) return {Code::kUnavailable, "unplugged"};
    return std::unique_ptr<Rail>(std::make_unique<FakeRail>());
  }

  bool has_spare_rail() const override { return spare; }

  bool spare = true;
  std::map<std::string, bool> down;
  std::map<std::string, int> openings;

 private:
  const std::string name_;
  const std::vector<std::string> paths_;
  const std::size_t rails_per_path_;
};

class Selector : public ::testing::Test {
 protected:
  RailSelector::Opened open(std::size_t lane, std::size_t current = RailSelector::kNoRank) {
    auto opened = selector_.open(lane, current, deadline_in(milliseconds(20000)));
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    return std::move(opened).value();
  }
  std::string name(const RailSelector::Opened& opened) const { return selector_.rails().at(opened.rank).name; }
  void wait_out_the_backoff() const { std::this_thread::sleep_for(milliseconds(1100)); }

  FakeTransport two_{"two", {"a", "b"}, 1};
  FakeTransport one_{"one", {""}, 1};
  Counters counters_;
  RailSelector selector_{{&two_, &one_}, {}, counters_};
};

const Status kBroken{Code::kPeerLost, "cable"};

TEST_F(Selector, LanesSpreadOverThePaths) {
  EXPECT_EQ(selector_.most_lanes(), 2u);
  EXPECT_EQ(selector_.lanes_wanted(), 2u);
  const auto first = open(0), second = open(1);
  EXPECT_EQ(name(first), "two a");
  EXPECT_EQ(name(second), "two b");
  EXPECT_FALSE(selector_.better_than(first.rank));
  EXPECT_FALSE(selector_.better_than(second.rank));
  EXPECT_EQ(selector_.active(), "two");
  EXPECT_EQ(selector_.note(), "two: first choice, 2 rails");
}

TEST_F(Selector, TheSpareLaneIsBesideTheOthersAndOnlyWhereTheTransportHasOne) {
  const auto first = open(0), second = open(1);
  EXPECT_EQ(selector_.spare_lane(), 2u);
  EXPECT_EQ(name(open(selector_.spare_lane())), "two a");
  EXPECT_EQ(selector_.rails()[0].lanes, 1u) << "it carries no load";
  two_.spare = one_.spare = false;
  EXPECT_FALSE(selector_.open(selector_.spare_lane(), RailSelector::kNoRank, deadline_in(milliseconds(100))).ok());
  EXPECT_EQ(two_.openings["a"] + two_.openings["b"], 3);
}

TEST_F(Selector, OneBreakSetsAPathAsideAndItsLaneTakesTheOther) {
  const auto first = open(0), second = open(1);
  selector_.report_failure(first.rank, kBroken);
  selector_.released(0, first.rank);
  EXPECT_EQ(name(open(0)), "two b");
  EXPECT_EQ(selector_.lanes_wanted(), 2u);
  EXPECT_EQ(selector_.switches(), 1u);
  EXPECT_EQ(selector_.note(), "two: first choice, 2 rails; a set aside: cable");
  EXPECT_TRUE(selector_.rails()[0].set_aside);
  EXPECT_EQ(selector_.rails()[0].failures, 1u);
  EXPECT_EQ(two_.openings["a"], 1);
}

TEST_F(Selector, ALaneLeavesAPathThatAnotherFoundBroken) {
  const auto first = open(0), second = open(1);
  const auto third = open(0);  // a second rail of path a, say of a lane that rests
  ASSERT_EQ(third.rank, first.rank);
  selector_.report_failure(first.rank, kBroken);
  EXPECT_TRUE(selector_.better_than(third.rank));
  EXPECT_EQ(name(open(0, third.rank)), "two b");
}

TEST_F(Selector, APathIsProbedAndTakenBack) {
  const auto first = open(0), second = open(1);
  two_.down["a"] = true;
  selector_.report_failure(first.rank, kBroken);
  selector_.released(0, first.rank);
  const auto moved = open(0);
  EXPECT_FALSE(selector_.better_than(moved.rank)) << "not before the time is up";
  wait_out_the_backoff();
  ASSERT_TRUE(selector_.better_than(moved.rank));
  EXPECT_FALSE(selector_.open(0, moved.rank, deadline_in(milliseconds(1000))).ok());
  EXPECT_FALSE(selector_.better_than(moved.rank)) << "still down: set aside for longer";
  two_.down["a"] = false;
  wait_out_the_backoff();
  wait_out_the_backoff();
  ASSERT_TRUE(selector_.better_than(moved.rank));
  const auto back = open(0, moved.rank);
  selector_.released(0, moved.rank);
  EXPECT_EQ(name(back), "two a");
  EXPECT_TRUE(selector_.rails()[0].set_aside) << "nothing has moved over it yet";
  selector_.report_success(back.rank);
  EXPECT_FALSE(selector_.rails()[0].set_aside);
  EXPECT_EQ(selector_.rails()[0].recoveries, 1u);
  EXPECT_EQ(selector_.switches(), 2u);
  EXPECT_EQ(counters_.get(Counters::kRailRecoveries), 1u);
  EXPECT_EQ(selector_.note(), "two: first choice, 2 rails");
}

TEST_F(Selector, OnlyWhenAllPathsFailTheNextTransportIsUsed) {
  two_.down["a"] = two_.down["b"] = true;
  EXPECT_EQ(name(open(0)), "one");
  EXPECT_EQ(selector_.lanes_wanted(), 1u);
  EXPECT_EQ(selector_.note(), "one: two a not possible: unplugged; two b not possible: unplugged");
  two_.down["b"] = false;
  wait_out_the_backoff();
  EXPECT_TRUE(selector_.better_than(2));
  EXPECT_EQ(name(open(0, 2)), "two b");
}

TEST_F(Selector, WithNothingAtHandAHealthyPathComesBeforeASuspectOne) {
  const auto first = open(0);
  selector_.report_failure(first.rank, kBroken);
  selector_.released(0, first.rank);
  wait_out_the_backoff();
  EXPECT_EQ(name(open(0)), "two b");
}

TEST(SelectorOfOne, ThePathOfALonelyTransportIsSetAsideAtTheSecondBreak) {
  FakeTransport only("only", {""}, 2);
  Counters counters;
  RailSelector selector({&only}, {}, counters);
  EXPECT_FALSE(selector.better_than(0));
  selector.report_failure(0, kBroken);
  EXPECT_FALSE(selector.rails()[0].set_aside);
  selector.report_failure(0, kBroken);
  EXPECT_TRUE(selector.rails()[0].set_aside);
  EXPECT_TRUE(selector.open(0, RailSelector::kNoRank, deadline_in(milliseconds(100))).ok()) << "rather than nothing";
  EXPECT_EQ(selector.switches(), 0u);
}

// Both lanes of the only path break at once and are back at once: the path must not count as set aside for ever.
TEST(SelectorOfOne, ASuccessWhileThePathIsSetAsideIsAskedForAgain) {
  FakeTransport only("only", {""}, 2);
  Counters counters;
  RailSelector selector({&only}, {}, counters);
  selector.report_failure(0, kBroken);
  selector.report_failure(0, kBroken);
  ASSERT_TRUE(selector.open(0, RailSelector::kNoRank, deadline_in(milliseconds(100))).ok());
  EXPECT_FALSE(selector.report_success(0));
  EXPECT_TRUE(selector.rails()[0].set_aside);
  std::this_thread::sleep_for(milliseconds(1100));
  EXPECT_TRUE(selector.report_success(0));
  EXPECT_FALSE(selector.rails()[0].set_aside);
  EXPECT_EQ(selector.rails()[0].recoveries, 1u);
}

}  // namespace
}  // namespace kvferry
