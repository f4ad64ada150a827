// NUMA nodes: what the kernel's lists mean, which placement the options ask for, and that the calls reach the kernel.
// Machines with one node check everything but where pages really go.
#include "base/numa.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <thread>

#include "engine_fixture.h"
#include "memory/arena.h"

namespace kvferry {
namespace {

using Ids = std::vector<int>;

TEST(Numa, ListsOfTheKernelAreRead) {
  EXPECT_EQ(parse_id_list("0"), Ids{0});
  EXPECT_EQ(parse_id_list("0-3,8\n"), (Ids{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_id_list("0,2-2"), (Ids{0, 2}));
  EXPECT_EQ(parse_id_list(""), Ids{});
  EXPECT_EQ(parse_id_list("\n"), Ids{});
}

TEST(Numa, OtherTextIsNoList) {
  for (const char* text : {"x", "1,", ",1", "3-1", "-1", "1-", "1 2", "0-99999999", "99999999999999999999", "1,,2"}) {
    EXPECT_EQ(parse_id_list(text), std::nullopt) << text;
  }
}

TEST(Numa, ThisHostHasANode) {
  const Ids nodes = numa_nodes();
  ASSERT_FALSE(nodes.empty());
  EXPECT_TRUE(std::is_sorted(nodes.begin(), nodes.end()));
}

TEST(Numa, OneNodeNeedsNoPlacement) {
  EXPECT_EQ(*numa_placement(true, -1, {0}), NumaPlacement{});
  EXPECT_EQ(*numa_placement(true, 0, {0}), NumaPlacement{});
  EXPECT_EQ(*numa_placement(true, 5, {0}), NumaPlacement{});
  EXPECT_EQ(*numa_placement(false, 0, {0}), NumaPlacement{});
}

TEST(Numa, SeveralNodesAreInterleavedUnlessOneIsPreferred) {
  EXPECT_EQ(numa_placement(true, -1, {0, 1})->kind, NumaPlacement::Kind::kInterleaved);
  EXPECT_EQ(*numa_placement(true, 1, {0, 1}), (NumaPlacement{NumaPlacement::Kind::kPreferred, 1}));
  EXPECT_EQ(*numa_placement(false, 1, {0, 1}), NumaPlacement{});
}

TEST(Numa, AnUnknownNodeIsRefusedByName) {
  const Status status = numa_placement(true, 7, {0, 1}).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("preferred_numa_node 7"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("0, 1"), std::string::npos) << status.message();
}

TEST(Numa, ArenasGoWhereTheyAreWanted) {
  for (const int node : numa_nodes()) {
    const auto arena = Arena::create(8u << 20, "placed", {true, {NumaPlacement::Kind::kPreferred, node}});
    ASSERT_TRUE(arena.ok()) << arena.status().to_string();
    const auto where = numa_node_of(arena->data() + (4u << 20));
    if (!where) GTEST_SKIP() << "the kernel does not tell where pages are";
    EXPECT_EQ(*where, node);
  }
  const auto arena = Arena::create(8u << 20, "interleaved", {true, {NumaPlacement::Kind::kInterleaved, 0}});
  ASSERT_TRUE(arena.ok()) << arena.status().to_string();
}

TEST(Numa, ARangeLiesOnANodeIfAllItsPagesDo) {
  const auto arena = Arena::create(8u << 20, "range", {true, {NumaPlacement::Kind::kPreferred, numa_nodes().front()}});
  ASSERT_TRUE(arena.ok()) << arena.status().to_string();
  const auto where = numa_node_of(arena->data(), arena->length());
  if (!numa_node_of(arena->data())) GTEST_SKIP() << "the kernel does not tell where pages are";
  EXPECT_EQ(where, numa_nodes().front());
  EXPECT_EQ(numa_node_of(arena->data(), 1), where);
  EXPECT_EQ(numa_node_of(arena->data(), 0), std::nullopt);
  void* const untouched = ::mmap(nullptr, 1u << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_EQ(numa_node_of(untouched, 1u << 20), std::nullopt) << "there are no pages yet";
  ::munmap(untouched, 1u << 20);
}

TEST(Numa, TheKernelRefusesANodeThatIsNotThere) {
  const auto arena = Arena::create(4096, "refused");
  ASSERT_TRUE(arena.ok());
  EXPECT_FALSE(place_memory(arena->data(), 4096, {NumaPlacement::Kind::kPreferred, 1000}).ok());
}

TEST(Numa, AThreadRunsOnItsNodeOnly) {
  std::thread([] {
    cpu_set_t before, after;
    ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
    const Status moved = run_on_node(numa_nodes().front());
    if (moved.code() == Code::kUnsupported) GTEST_SKIP() << moved.to_string();
    ASSERT_TRUE(moved.ok()) << moved.to_string();
    ASSERT_EQ(::sched_getaffinity(0, sizeof(after), &after), 0);
    cpu_set_t both;
    CPU_AND(&both, &before, &after);
    EXPECT_TRUE(CPU_EQUAL(&both, &after)) << "it may run on more CPUs than before";
    EXPECT_GT(CPU_COUNT(&after), 0);
  }).join();
}

TEST(Numa, AnEngineTakesThePreferenceAndMovesDataAsEver) {
  EngineOptions options = testing::options_for({"shm"});
  options.preferred_numa_node = numa_nodes().back();
  auto near = testing::make_engine(options), far = testing::make_engine(options);
  ASSERT_TRUE(near && far);
  auto arena = far->allocate(4096, "arena", kRemoteRead);
  ASSERT_TRUE(arena.ok()) << arena.status().to_string();
  testing::fill({static_cast<std::byte*>(arena->second), 4096}, 3);
  testing::Buffer buffer = testing::register_buffer(*near, 4096, 4);
  const auto peer = testing::connect(*near, *far);
  ASSERT_TRUE(peer);
  EXPECT_OK(testing::run(*near, peer, {{buffer.region.key.id, arena->first.key.id, 0, 0, 4096}}, Op::kRead));
  EXPECT_EQ(buffer.bytes[4095], testing::pattern(3, 4095));
}

TEST(Numa, ANodeWithoutCpusKeepsNoThread) { EXPECT_EQ(run_on_node(1000).code(), Code::kUnsupported); }

}  // namespace
}  // namespace kvferry
