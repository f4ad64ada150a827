// Among rails that are free, a transfer gets the one that begins nearest to its memory. The machine is made up.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "engine/lane_pool.h"
#include "engine/plan_builder.h"
#include "engine_fixture.h"
#include "fake_machine.h"
#include "process_state.h"
#include "topology/read_topology.h"

namespace kvferry::testing {
namespace {

const std::thread::id kTestThread = std::this_thread::get_id();

class CountingRail final : public Rail {
 public:
  CountingRail(std::atomic<int>& moved, std::atomic<int>& by_lanes) : moved_(moved), by_lanes_(by_lanes) {}
  std::string_view transport() const override { return "fake"; }
  Status execute(const Batch&, std::span<Status>, Deadline, const std::atomic<bool>&) override {
    ++moved_;
    if (std::this_thread::get_id() != kTestThread) ++by_lanes_;
    return {};
  }
  void interrupt() override {}

 private:
  std::atomic<int>&moved_, &by_lanes_;
};

// One rail for each path; path `i` begins on NUMA node `nodes[i]`.
class FakeTransport final : public Transport {
 public:
  explicit FakeTransport(std::vector<int> nodes) : nodes_(std::move(nodes)) {
    for (const int node : nodes_) moved[node] = 0;
  }
  std::string_view name() const override { return "fake"; }
  Status probe() const override { return {}; }
  std::size_t rails_per_path() const override { return 1; }
  bool has_spare_rail() const override { return false; }
  std::vector<Path> paths(const PeerContext&) const override {
    std::vector<Path> out;
    for (const int node : nodes_) out.push_back({"node " + std::to_string(node), std::nullopt, {}, node});
    return out;
  }
  Result<std::unique_ptr<Rail>> open_rail(const PeerContext& peer, Deadline) override {
    return std::unique_ptr<Rail>(std::make_unique<CountingRail>(moved.at(peer.path.numa_node), by_lanes));
  }

  std::map<int, std::atomic<int>> moved;  // batches, by node
  std::atomic<int> by_lanes{0};           // of them, those that no caller moved itself

 private:
  const std::vector<int> nodes_;
};

class NearRails : public ::testing::Test {
 protected:
  NearRails() : pool_({&transport_}, context(), EngineOptions(), counters_, hooks()) {
    // Both lanes have a rail, and have come to rest.
    EXPECT_TRUE(eventually([&] {
      EXPECT_TRUE(move(0, 8u << 20)->wait(kPatience));
      return pool_.stats().by_transport.at(0).rails == 2;
    }));
    for (const int node : {0, 1}) {
      EXPECT_TRUE(eventually([&] {
        const int before = moved(node), by_lanes = transport_.by_lanes;
        EXPECT_TRUE(move(node, 4096)->wait(kPatience));
        return moved(node) == before + 1 && transport_.by_lanes == by_lanes;
      }));
    }
  }
  ~NearRails() override {
    pool_.stop({Code::kCancelled, "the test is over"});
    for (std::thread& thread : threads_) thread.join();
  }
  PeerContext context() const {
    PeerContext context;
    context.distances = NumaDistances(read_topology(machine_.root(), {}));
    return context;
  }
  LanePool::Hooks hooks() {
    return {[this](std::string, std::function<void()> body) {
              threads_.emplace_back(std::move(body));
              return Status();
            },
            [](const TransferImpl&) { return Status(); }, [] { return Status(); },
            [](const std::shared_ptr<TransferImpl>&) {}};
  }
  // Of memory on `node`, moved by this thread if a lane is free.
  std::shared_ptr<TransferImpl> move(int node, std::uint64_t bytes) {
    PlanBuilder builder(nullptr, Op::kRead, bytes, 1, pool_.slice_shape());
    builder.add(nullptr, {1, 1}, 0, bytes);
    TransferImpl::Order order;
    order.plan = builder.finish({});
    order.deadline = deadline_in(kPatience);
    order.numa_node = node;
    auto transfer = std::make_shared<TransferImpl>(std::move(order));
    EXPECT_OK(pool_.enqueue(transfer, LanePool::Help::kMove));
    return transfer;
  }
  int moved(int node) const { return transport_.moved.at(node); }

  const FakeMachine machine_{"two_node_machine.txt"};
  FakeTransport transport_{{0, 1}};
  Counters counters_;
  std::vector<std::thread> threads_;
  LanePool pool_;
};

TEST_F(NearRails, AreTakenFirst) {
  const int before_0 = moved(0), before_1 = moved(1);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(move(1, 4096)->settled());
  EXPECT_EQ(moved(0), before_0);
  EXPECT_EQ(moved(1), before_1 + 5);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(move(0, 4096)->settled());
  EXPECT_EQ(moved(0), before_0 + 3);
  EXPECT_EQ(moved(1), before_1 + 5);
}

TEST_F(NearRails, DoNotMatterToMemoryOfNoNode) {
  const int before = moved(0) + moved(1);
  for (const int node : {-1, 7}) EXPECT_TRUE(move(node, 4096)->settled());
  EXPECT_EQ(moved(0) + moved(1), before + 2);
}

TEST_F(NearRails, LeaveNoRailIdleWhenThereIsMoreToMove) {
  const int before = moved(1);
  EXPECT_TRUE(eventually([&] {
    EXPECT_TRUE(move(0, 64u << 20)->wait(kPatience));
    return moved(1) > before;
  }));
}

}  // namespace
}  // namespace kvferry::testing
