// Transfers that the calling thread moves itself, over a lane that it borrows; priorities; stages and statistics.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include "engine_fixture.h"
#include "process_state.h"

namespace kvferry::testing {
namespace {

constexpr std::uint64_t kLength = 16u << 20;

struct Pair {
  explicit Pair(EngineOptions options) {
    EngineOptions plain = options;
    plain.fault_plan.clear();
    b = make_engine(plain);
    a = make_engine(options);
    near = register_buffer(*a, kLength, 1);
    far = register_buffer(*b, kLength, 2);
    peer = connect(*a, *b);
  }
  std::shared_ptr<const Plan> plan(std::uint64_t length, Op op = Op::kRead, std::uint64_t offset = 0) const {
    const std::vector<Piece> pieces{{near.region.key.id, far.region.key.id, offset, offset, length}};
    auto made = a->prepare(peer, pieces, op);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return *made;
  }
  std::shared_ptr<Transfer> execute(const std::shared_ptr<const Plan>& plan, SubmitOptions options = {}) const {
    auto transfer = a->execute(plan, std::move(options));
    EXPECT_TRUE(transfer.ok()) << transfer.status().to_string();
    EXPECT_TRUE((*transfer)->settled());
    return *transfer;
  }
  Buffer near, far;
  std::unique_ptr<Engine> a, b;
  std::shared_ptr<Peer> peer;
};

EngineOptions with_faults(std::vector<std::string> transports, std::string plan = "") {
  EngineOptions options = options_for(std::move(transports));
  options.fault_plan = std::move(plan);
  return options;
}

class Execute : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transports, Execute, ::testing::Values("shm", "tcp"));

TEST_P(Execute, MovesAndWaits) {
  Pair pair(options_for({GetParam()}));
  for (const std::uint64_t length : {std::uint64_t{0}, std::uint64_t{4096}, std::uint64_t{300'000}, kLength}) {
    const auto plan = pair.plan(length);
    for (int i = 0; i < 3; ++i) {
      std::fill(pair.near.bytes.begin(), pair.near.bytes.end(), std::byte{0});
      const auto transfer = pair.execute(plan);
      EXPECT_OK(transfer->status());
      EXPECT_TRUE(std::equal(pair.near.bytes.begin(), pair.near.bytes.begin() + static_cast<std::ptrdiff_t>(length),
                             pair.far.bytes.begin()));
      EXPECT_EQ(transfer->transport(), GetParam());
    }
  }
}

TEST_P(Execute, TheCallerNeedsNoOtherThreadOnceARailIsOpen) {
  Pair pair(options_for({GetParam()}));
  const auto plan = pair.plan(4096);
  pair.execute(plan);  // a lane opens the rail
  EXPECT_TRUE(eventually([&] { return pair.execute(plan)->stages().wake_s == 0; }));
}

TEST_P(Execute, ManyThreadsAtOnce) {
  Pair pair(options_for({GetParam()}));
  std::vector<std::thread> threads;
  std::atomic<int> bad{0};
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::uint64_t length = t == 0 ? 1u << 20 : 65536;
      const auto plan = pair.plan(length, Op::kRead, t << 21);
      for (int i = 0; i < 100; ++i) {
        auto transfer = i % 3 == 0 ? pair.a->submit(plan, {}) : pair.a->execute(plan, {});
        if (!transfer.ok() || !(*transfer)->wait(kPatience) || !(*transfer)->status().ok()) ++bad;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bad, 0);
  for (std::uint64_t t = 0; t < 4; ++t) EXPECT_EQ(pair.near.bytes[(t << 21) + 65535], pattern(2, (t << 21) + 65535));
  const PeerStats stats = pair.peer->stats();
  EXPECT_EQ(stats.unsettled_transfers, 0u);
  EXPECT_EQ(stats.queued_slices, 0u);
  EXPECT_EQ(stats.pieces, 400u);
}

TEST_P(Execute, ABorrowedRailThatBreaksIsReplaced) {
  Pair pair(with_faults({GetParam()}, "*:cut@3x1"));
  const auto plan = pair.plan(4096);
  for (int i = 0; i < 20; ++i) {
    std::fill(pair.near.bytes.begin(), pair.near.bytes.end(), std::byte{0});
    EXPECT_OK(pair.execute(plan)->status());
    EXPECT_EQ(pair.near.bytes[4095], pattern(2, 4095));
  }
  EXPECT_EQ(pair.peer->stats().retried_slices, 1u);
  EXPECT_EQ(pair.a->counters()["rail_failures_total"], 1u);
}

TEST_P(Execute, WithoutTimeItFailsAndBlamesNoRail) {
  Pair pair(options_for({GetParam()}));
  const auto plan = pair.plan(4096);
  EXPECT_OK(pair.execute(plan)->status());
  SubmitOptions hurried;
  hurried.timeout = milliseconds(0);
  EXPECT_EQ(pair.execute(plan, hurried)->status().code(), Code::kDeadlineExceeded);
  const PeerStats stats = pair.peer->stats();
  ASSERT_EQ(stats.by_transport.size(), 1u);
  EXPECT_EQ(stats.by_transport[0].rail_failures, 0u);
}

// From the second call on every execute() of a rail hangs; the caller has borrowed it.
class BorrowedHang : public ::testing::Test {
 protected:
  BorrowedHang() : pair_(with_faults({"tcp"}, "tcp:hang@2")), plan_(pair_.plan(4096)) {
    pair_.execute(plan_);
    caller_ = std::thread([this] {
      SubmitOptions options;
      options.timeout = timeout_;
      begun_ = true;
      auto transfer = pair_.a->execute(plan_, options);
      if (transfer.ok()) status_ = (*transfer)->status();
      ended_ = true;
    });
    EXPECT_TRUE(eventually([&] { return begun_ && pair_.peer->stats().unsettled_transfers == 1; }));
  }
  ~BorrowedHang() override {
    if (caller_.joinable()) caller_.join();
  }
  Code end() {
    caller_.join();
    return status_.code();
  }
  milliseconds timeout_{15000};
  Pair pair_;
  std::shared_ptr<const Plan> plan_;
  std::thread caller_;
  std::atomic<bool> begun_{false}, ended_{false};
  Status status_;
};

TEST_F(BorrowedHang, IsInterruptedByClosingTheEngine) {
  pair_.a->close();
  EXPECT_EQ(end(), Code::kCancelled);
}

TEST_F(BorrowedHang, IsInterruptedByTheLossOfThePeer) {
  pair_.peer->close();
  EXPECT_EQ(end(), Code::kCancelled);
  EXPECT_EQ(pair_.peer->stats().unsettled_transfers, 0u);
}

TEST_F(BorrowedHang, DoesNotHoldUpUnregistering) {
  EXPECT_EQ(pair_.a->unregister(pair_.near.region.key, milliseconds(50)).code(), Code::kDeadlineExceeded);
  pair_.peer->close();
  end();
  EXPECT_OK(pair_.a->unregister(pair_.near.region.key, kPatience));
}

TEST(ExecuteDeadline, EndsABorrowedRailThatHangs) {
  Pair pair(with_faults({"tcp"}, "tcp:hang@2"));
  const auto plan = pair.plan(4096);
  pair.execute(plan);
  SubmitOptions options;
  options.timeout = milliseconds(300);
  EXPECT_EQ(pair.execute(plan, options)->status().code(), Code::kDeadlineExceeded);
}

TEST_P(Execute, ADeadlineThatEndsOnTheRailIsNotItsFailure) {
  Pair pair(with_faults({GetParam()}, "*:hang@2x1"));
  const auto plan = pair.plan(4096);
  EXPECT_OK(pair.execute(plan)->status());
  SubmitOptions options;
  options.timeout = milliseconds(100);
  EXPECT_EQ(pair.execute(plan, options)->status().code(), Code::kDeadlineExceeded);
  EXPECT_OK(pair.execute(plan)->status());
  const PeerStats stats = pair.peer->stats();
  EXPECT_EQ(stats.by_transport.at(0).rail_failures, 0u);
  EXPECT_EQ(stats.rails.at(0).failures, 0u);
  EXPECT_EQ(pair.a->counters()["rail_failures_total"], 0u);
}

TEST_P(Execute, ACancelSaysNothingTwice) {
  Pair pair(with_faults({GetParam()}, "*:hang@2"));
  const auto plan = pair.plan(4096);
  EXPECT_OK(pair.execute(plan)->status());
  auto transfer = pair.a->submit(plan, {});
  ASSERT_TRUE(transfer.ok()) << transfer.status().to_string();
  EXPECT_TRUE(eventually([&] { return pair.peer->stats().queued_slices == 0; }));
  (*transfer)->cancel();
  EXPECT_TRUE((*transfer)->wait(kPatience));
  EXPECT_EQ((*transfer)->status().message(), "1 of 1 pieces failed: the transfer was cancelled by its owner");
}

TEST(SubmitCopies, SmallTransfersOfOneHostAtOnce) {
  Pair pair(options_for({"shm"}));
  const auto small = pair.plan(65536), large = pair.plan(1u << 20);
  pair.execute(small);
  EXPECT_TRUE(eventually([&] { return (*pair.a->submit(small, {}))->settled(); }));
  // What takes longer, or has a message to send, is left to a lane; so is everything on tcp.
  SubmitOptions notify;
  notify.notify = "done";
  const auto other = pair.a->submit(small, notify);
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE((*other)->wait(kPatience));
  EXPECT_TRUE(pair.b->next_message(kPatience).has_value());
  EXPECT_OK((*other)->status());
}

TEST(SubmitCopies, NotWhileOthersWait) {
  EngineOptions options = with_faults({"shm"}, "shm:delay=20");  // such a rail is not immediate
  Pair pair(options);
  const auto plan = pair.plan(4096);
  pair.execute(plan);
  auto transfer = pair.a->submit(plan, {});
  ASSERT_TRUE(transfer.ok());
  EXPECT_FALSE((*transfer)->settled());
  EXPECT_TRUE((*transfer)->wait(kPatience));
}

// One lane, held by a transfer that hangs until it is cancelled, while others queue up. Each has a message, so that the
// peer's inbox tells in which order they were done.
class Queued : public ::testing::TestWithParam<const char*> {
 protected:
  Queued() : pair_(one_lane()), holder_(start(pair_.plan(4096), {})) {
    EXPECT_TRUE(eventually([&] { return pair_.peer->stats().queued_slices == 0; }));  // it has the rail
  }
  static EngineOptions one_lane() {
    EngineOptions options = with_faults({GetParam()}, "*:hang@1x1");
    options.tcp_streams = 1;
    return options;
  }
  std::shared_ptr<Transfer> start(const std::shared_ptr<const Plan>& plan, SubmitOptions options) {
    auto transfer = pair_.a->submit(plan, std::move(options));
    EXPECT_TRUE(transfer.ok()) << transfer.status().to_string();
    return *transfer;
  }
  void submit(std::uint64_t length, std::string name, Priority priority = Priority::kNormal) {
    SubmitOptions options;
    options.timeout = kPatience;
    options.notify = std::move(name);
    options.priority = priority;
    queued_.push_back(start(pair_.plan(length), options));
  }
  std::vector<std::string> order_of_completion() {
    holder_->cancel();
    std::vector<std::string> order;
    for (const auto& transfer : queued_) {
      EXPECT_TRUE(transfer->wait(kPatience));
      EXPECT_OK(transfer->status());
      const auto message = pair_.b->next_message(kPatience);
      order.push_back(message ? message->body : "");
    }
    return order;
  }
  Pair pair_;
  std::shared_ptr<Transfer> holder_;
  std::vector<std::shared_ptr<Transfer>> queued_;
};
INSTANTIATE_TEST_SUITE_P(Transports, Queued, ::testing::Values("shm", "tcp"));

TEST_P(Queued, HigherClassesGoFirst) {
  submit(4096, "low-1", Priority::kLow);
  submit(4096, "normal-1");
  submit(4096, "normal-2");
  submit(4096, "high-1", Priority::kHigh);
  submit(4096, "high-2", Priority::kHigh);
  EXPECT_EQ(pair_.peer->stats().queued_slices, 5u);
  EXPECT_EQ(order_of_completion(), (std::vector<std::string>{"high-1", "high-2", "normal-1", "normal-2", "low-1"}));
}

// One slice, but too much for the spare lane.
TEST_P(Queued, ShortTransfersPassLongOnes) {
  submit(kLength, "big-1");
  submit(kLength, "big-2");
  submit(300u << 10, "short-1");
  submit(300u << 10, "short-2");
  EXPECT_EQ(order_of_completion(), (std::vector<std::string>{"short-1", "short-2", "big-1", "big-2"}));
}

TEST(Stages, AddUpToTheWholeTime) {
  Pair pair(options_for({"tcp"}));
  const auto plan = pair.plan(1u << 20);
  auto transfer = pair.a->submit(plan, {});
  ASSERT_TRUE(transfer.ok());
  ASSERT_TRUE((*transfer)->wait(kPatience));
  const TransferStages stages = (*transfer)->stages();
  for (const double part : {stages.submit_s, stages.queue_s, stages.move_s, stages.settle_s}) EXPECT_GE(part, 0);
  EXPECT_GT(stages.move_s, 0);
  EXPECT_NEAR(stages.submit_s + stages.queue_s + stages.move_s + stages.settle_s, (*transfer)->seconds(), 1e-9);
}

TEST(Statistics, TellTransportsApart) {
  Pair pair(with_faults({"shm", "tcp"}, "shm:cut@3"));
  const auto plan = pair.plan(4096);
  for (int i = 0; i < 6; ++i) EXPECT_OK(pair.execute(plan)->status());
  const PeerStats stats = pair.peer->stats();
  EXPECT_EQ(stats.rail_switches, 1u);
  EXPECT_EQ(stats.bytes_read, 6u * 4096);
  ASSERT_EQ(stats.by_transport.size(), 2u);
  const TransportStats &shm = stats.by_transport[0], &tcp = stats.by_transport[1];
  EXPECT_EQ(shm.transport, "shm");
  EXPECT_EQ(tcp.transport, "tcp");
  EXPECT_EQ(shm.transfers, 2u);
  EXPECT_EQ(tcp.transfers, 4u);
  EXPECT_EQ(shm.bytes_read + tcp.bytes_read, 6u * 4096);
  EXPECT_EQ(shm.rail_failures, 2u);  // then it is set aside
  EXPECT_EQ(shm.retried_slices, 2u);
  EXPECT_EQ(shm.rails, 0u);
  EXPECT_GE(tcp.rails, 1u);
  EXPECT_EQ(std::accumulate(tcp.latency.begin(), tcp.latency.end(), std::uint64_t{0}), 4u);
  EXPECT_GT(tcp.latency_sum_s, 0);
}

TEST(Statistics, CountFailuresByKind) {
  Pair pair(options_for({"tcp"}));
  const auto plan = pair.plan(4096);
  ASSERT_OK(pair.b->unregister(pair.far.region.key, kPatience));
  EXPECT_EQ(pair.execute(plan)->status().code(), Code::kStale);
  const PeerStats stats = pair.peer->stats();
  ASSERT_EQ(stats.by_transport.size(), 1u);
  EXPECT_EQ(stats.by_transport[0].failed_pieces, (std::map<Code, std::uint64_t>{{Code::kStale, 1}}));
  EXPECT_EQ(
      std::accumulate(stats.by_transport[0].latency.begin(), stats.by_transport[0].latency.end(), std::uint64_t{0}),
      0u);
}

}  // namespace
}  // namespace kvferry::testing
