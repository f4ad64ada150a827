// The lane that moves small transfers while large ones keep the others busy. Here these hang in the middle of a slice.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "engine_fixture.h"
#include "process_state.h"

namespace kvferry::testing {
namespace {

constexpr std::uint64_t kLarge = 16u << 20, kSmall = 64u << 10;

EngineOptions one_lane(const std::string& transport, std::string faults) {
  EngineOptions options = options_for({transport});
  options.tcp_streams = options.shm_lanes = 1;
  options.fault_plan = std::move(faults);
  return options;
}

class Gate {
 public:
  // `transport` or "shm arena"; the first slice of all does not end by itself unless `faults` say something else.
  explicit Gate(const std::string& way, std::string faults = "*:hang@1x1")
      : transport_(way.substr(0, 3)),
        owner_(make_engine(options_for({transport_}))),
        engine_(make_engine(one_lane(transport_, std::move(faults)))) {
    near_ = register_buffer(*engine_, kLarge, 1);
    if (way == "shm arena") {
      auto arena = owner_->allocate(kLarge, "arena", kRemoteRead | kRemoteWrite);
      EXPECT_TRUE(arena.ok()) << arena.status().to_string();
      fill({static_cast<std::byte*>(arena->second), kLarge}, 2);
      far_.region = arena->first;
    } else {
      far_ = register_buffer(*owner_, kLarge, 2);
    }
    peer_ = connect(*engine_, *owner_);
  }

  std::shared_ptr<const Plan> plan(std::uint64_t length) {
    auto made =
        engine_->prepare(peer_, std::vector<Piece>{{near_.region.key.id, far_.region.key.id, 0, 0, length}}, Op::kRead);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return *made;
  }
  std::shared_ptr<Transfer> submit(std::uint64_t length, Priority priority = Priority::kNormal) {
    SubmitOptions options;
    options.priority = priority;
    options.timeout = kPatience;
    auto transfer = engine_->submit(plan(length), options);
    EXPECT_TRUE(transfer.ok()) << transfer.status().to_string();
    return *transfer;
  }
  std::shared_ptr<Transfer> execute(std::uint64_t length, Priority priority = Priority::kNormal) {
    SubmitOptions options;
    options.priority = priority;
    options.timeout = kPatience;
    auto transfer = engine_->execute(plan(length), options);
    EXPECT_TRUE(transfer.ok()) << transfer.status().to_string();
    return *transfer;
  }
  // A large transfer of which the only ordinary lane has the first slice, and will keep it.
  std::shared_ptr<Transfer> start_large() {
    auto large = submit(kLarge);
    const std::size_t slices = kLarge / EngineOptions().slice_bytes;
    EXPECT_TRUE(eventually([&] { return peer_->stats().queued_slices == slices - 1; }));
    return large;
  }
  std::size_t open_rails() const {
    const PeerStats stats = peer_->stats();
    return stats.by_transport.empty() ? 0 : stats.by_transport[0].rails;
  }
  void expect_small_data() const {
    for (std::uint64_t i = 0; i < kSmall; i += 61) ASSERT_EQ(near_.bytes[i], pattern(2, i)) << i;
  }

  const std::string transport_;
  Buffer near_, far_;  // longer than the engines: what was cancelled may still be on its way at the end
  std::unique_ptr<Engine> owner_, engine_;
  std::shared_ptr<Peer> peer_;
};

class SpareLane : public ::testing::TestWithParam<std::tuple<const char*, Priority>> {};
INSTANTIATE_TEST_SUITE_P(Ways, SpareLane,
                         ::testing::Combine(::testing::Values("tcp", "shm", "shm arena"),
                                            ::testing::Values(Priority::kHigh, Priority::kNormal)));

TEST_P(SpareLane, SmallTransfersSettleWhileALargeOneIsUnderWay) {
  const auto [way, priority] = GetParam();
  Gate gate(way);
  const auto large = gate.start_large();
  for (int i = 0; i < 3; ++i) {
    const auto submitted = gate.submit(kSmall, priority);
    EXPECT_TRUE(submitted->wait(kPatience));
    EXPECT_OK(submitted->status());
    EXPECT_OK(gate.execute(kSmall, priority)->status());
  }
  gate.expect_small_data();
  EXPECT_FALSE(large->settled());
  EXPECT_EQ(gate.peer_->stats().queued_slices, kLarge / EngineOptions().slice_bytes - 1) << "nothing else has moved";
  large->cancel();
  EXPECT_TRUE(large->wait(kPatience));
}

TEST_P(SpareLane, IsBorrowedByTheCaller) {
  const auto [way, priority] = GetParam();
  Gate gate(way);
  const auto large = gate.start_large();
  EXPECT_TRUE(eventually([&, kind = priority] { return gate.execute(kSmall, kind)->stages().wake_s == 0; }));
  EXPECT_FALSE(large->settled());
  large->cancel();
  EXPECT_TRUE(large->wait(kPatience));
}

class SpareLaneOf : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transports, SpareLaneOf, ::testing::Values("tcp", "shm"));

TEST_P(SpareLaneOf, IsNotForLowPriorityNorForWhatIsNotSmall) {
  Gate gate(GetParam());
  const auto large = gate.start_large();
  const auto low = gate.submit(kSmall, Priority::kLow);
  const auto medium = gate.submit(1u << 20, Priority::kHigh);
  EXPECT_OK(gate.execute(kSmall)->status());  // which the spare lane has moved, so it has looked at the others
  EXPECT_FALSE(low->settled());
  EXPECT_FALSE(medium->settled());
  large->cancel();
  for (const auto& other : {low, medium}) {
    EXPECT_TRUE(other->wait(kPatience));
    EXPECT_OK(other->status());
  }
}

TEST_P(SpareLaneOf, IsOpenedByTheFirstLargeTransfer) {
  Gate gate(GetParam(), "");
  for (int i = 0; i < 5; ++i) EXPECT_OK(gate.execute(kSmall)->status());
  EXPECT_EQ(gate.open_rails(), 1u);
  EXPECT_TRUE(eventually([&] {
    EXPECT_OK(gate.execute(kLarge)->status());
    return gate.open_rails() == 2;
  }));
}

TEST_P(SpareLaneOf, FailsNobodyWhenItCannotBeOpened) {
  Gate gate(GetParam(), "*:refuse@2;*:hang@1x1");  // the second rail, and all after it
  const auto large = gate.start_large();
  const auto small = gate.submit(kSmall);
  large->cancel();  // the lane that hung goes on, with the rail that it has
  EXPECT_TRUE(small->wait(kPatience));
  EXPECT_TRUE(large->wait(kPatience));
  EXPECT_EQ(large->status().code(), Code::kCancelled);
}

TEST_P(SpareLaneOf, IsInterruptedByClosingTheEngine) {
  Gate gate(GetParam(), "*:hang");
  const auto large = gate.start_large();
  const auto small = gate.submit(kSmall);
  EXPECT_TRUE(eventually([&] { return gate.open_rails() == 2; }));
  gate.engine_->close();
  EXPECT_EQ(large->status().code(), Code::kCancelled);
  EXPECT_EQ(small->status().code(), Code::kCancelled);
}

TEST(SpareLaneOfOwnNode, MovesMemory) {
  EngineOptions options = options_for({"shm"});
  options.fault_plan = "local:hang@1x1";
  auto engine = make_engine(options);
  const Buffer from = register_buffer(*engine, kLarge, 1), to = register_buffer(*engine, kLarge, 2);
  const auto self = engine->self();
  ASSERT_TRUE(self != nullptr);
  const auto piece = [&](std::uint64_t length) {
    return std::vector<Piece>{{to.region.key.id, from.region.key.id, 0, 0, length}};
  };
  const auto large = start(*engine, self, piece(kLarge), Op::kRead);
  ASSERT_TRUE(large.ok()) << large.status().to_string();
  EXPECT_TRUE(eventually([&] { return self->stats().queued_slices == kLarge / options.slice_bytes - 1; }));
  EXPECT_OK(run(*engine, self, piece(kSmall), Op::kRead));
  EXPECT_FALSE((*large)->settled());
  (*large)->cancel();
  EXPECT_TRUE((*large)->wait(kPatience));
}

}  // namespace
}  // namespace kvferry::testing
