#include "memory/region_table.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/limits.h"
#include "base/log.h"
#include "log_lines.h"
#include "memory/address_range.h"

namespace kvferry {
namespace {

class RegionTableFixture : public testing::Test {
 protected:
  RegionSource source(std::uint64_t offset = 0, std::uint64_t length = 4096) {
    return {memory.data() + offset, length, "layer.0", kRemoteRead, MemoryKind::kHost, 0, 0};
  }

  std::vector<std::byte> memory = std::vector<std::byte>(1u << 16);
  NodeId owner = NodeId::random();
  Result<RegionDirectoryWriter> directory = RegionDirectoryWriter::create(owner);
  Result<RegionDirectoryReader> peer_view =
      RegionDirectoryReader::open(UniqueFd(::fcntl(directory->fd(), F_DUPFD_CLOEXEC, 0)), owner);
  RegionTable table{&*directory, true};
};

TEST_F(RegionTableFixture, RegisteredMemoryIsFoundPinnedAndListed) {
  const auto info = table.add(source());
  ASSERT_TRUE(info.ok()) << info.status().to_string();
  EXPECT_EQ(info->key.id, 1U);
  EXPECT_EQ(info->name, "layer.0");
  EXPECT_EQ(table.find(info->key.id)->key, info->key);
  EXPECT_EQ(table.list(), std::vector<RegionInfo>{*info});
  const auto pin = table.pin(info->key);
  ASSERT_TRUE(pin.ok());
  EXPECT_EQ(pin->data(), memory.data());
  EXPECT_EQ(*pin->at(4000, 96), memory.data() + 4000);
  EXPECT_EQ(pin->at(4000, 97).status().code(), Code::kOutOfRange);
  EXPECT_EQ(pin->at(UINT64_MAX, 2).status().code(), Code::kOutOfRange);
}

TEST_F(RegionTableFixture, PeersSeeWhatIsRegistered) {
  const auto info = table.add(source(64));
  const auto seen = peer_view->resolve(info->key, 0, 4096, Op::kRead);
  ASSERT_TRUE(seen.ok()) << seen.status().to_string();
  EXPECT_EQ(seen->base, reinterpret_cast<std::uint64_t>(memory.data() + 64));
  ASSERT_TRUE(table.remove(info->key, deadline_in(milliseconds(0))).ok());
  EXPECT_EQ(peer_view->still_current(info->key).code(), Code::kStale);
}

TEST_F(RegionTableFixture, PeerRequestsAreCheckedForAccessAndRange) {
  const RegionKey key = table.add(source())->key;
  EXPECT_TRUE(table.pin_for_peer(key, 0, 4096, Op::kRead).ok());
  EXPECT_EQ(table.pin_for_peer(key, 0, 1, Op::kWrite).status().code(), Code::kPermissionDenied);
  EXPECT_EQ(table.pin_for_peer(key, 1, 4096, Op::kRead).status().code(), Code::kOutOfRange);
  EXPECT_EQ(table.pin_for_peer(key, UINT64_MAX, UINT64_MAX, Op::kRead).status().code(), Code::kOutOfRange);
  EXPECT_TRUE(table.remove(key, deadline_in(milliseconds(0))).ok()) << "refused requests must not keep a pin";
}

TEST_F(RegionTableFixture, StaleGenerationIsRefused) {
  const RegionKey first = table.add(source())->key;
  ASSERT_TRUE(table.remove(first, deadline_in(milliseconds(0))).ok());
  EXPECT_EQ(table.pin(first).status().code(), Code::kStale);
  const RegionKey second = table.add(source(8192))->key;
  EXPECT_EQ(second.id, first.id) << "the id is used again";
  EXPECT_GT(second.generation, first.generation);
  EXPECT_EQ(table.pin(first).status().code(), Code::kStale);
  EXPECT_EQ(table.remove(first, deadline_in(milliseconds(0))).code(), Code::kStale);
  EXPECT_EQ(table.pin({second.id, second.generation + 1}).status().code(), Code::kNotFound);
  EXPECT_EQ(table.pin({0, 1}).status().code(), Code::kNotFound);
  EXPECT_EQ(table.pin({kMaxRegions + 1, 1}).status().code(), Code::kNotFound);
}

TEST_F(RegionTableFixture, TheSameMemoryOnceMoreIsTheSameRegionUntilBothAreRemoved) {
  const auto now = [] { return deadline_in(milliseconds(0)); };
  const auto first = table.add(source()), again = table.add(source());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, *first);
  EXPECT_EQ(table.list().size(), 1U);
  ASSERT_TRUE(table.remove(first->key, now()).ok());
  EXPECT_TRUE(table.pin(first->key).ok());
  EXPECT_TRUE(peer_view->resolve(first->key, 0, 4096, Op::kRead).ok());
  ASSERT_TRUE(table.remove(first->key, now()).ok());
  EXPECT_EQ(table.pin(first->key).status().code(), Code::kStale);
  EXPECT_EQ(peer_view->still_current(first->key).code(), Code::kStale);
  EXPECT_EQ(table.remove(first->key, now()).code(), Code::kStale);
}

TEST_F(RegionTableFixture, MemoryThatDiffersInAnythingIsAnotherRegion) {
  const RegionKey first = table.add(source())->key;
  RegionSource other[] = {source(1), source(0, 4095), source(), source(), source()};
  other[2].name = "layer.1";
  other[3].access = kRemoteRead | kRemoteWrite;
  other[4].arena_index = 1;
  for (const RegionSource& each : other) EXPECT_NE(table.add(each)->key.id, first.id);
  EXPECT_EQ(table.list().size(), 6U);
}

TEST_F(RegionTableFixture, MemoryThatIsBeingTakenBackIsRegisteredAnew) {
  const RegionKey first = table.add(source())->key;
  std::optional<RegionTable::Pin> pin = std::move(table.pin(first)).value();
  EXPECT_EQ(table.remove(first, deadline_in(milliseconds(1))).code(), Code::kDeadlineExceeded);
  const RegionKey second = table.add(source())->key;
  EXPECT_NE(second.id, first.id);
  pin.reset();
  EXPECT_TRUE(table.remove(first, deadline_in(milliseconds(0))).ok());
  EXPECT_TRUE(table.pin(second).ok());
}

TEST_F(RegionTableFixture, AnEngineThatEndsHidesWhatIsRegisteredTwice) {
  const RegionKey key = table.add(source())->key;
  ASSERT_EQ(table.add(source())->key, key);
  table.hide_all();
  EXPECT_EQ(table.pin(key).status().code(), Code::kStale);
  EXPECT_EQ(peer_view->still_current(key).code(), Code::kStale);
}

TEST_F(RegionTableFixture, MemoryThatIsRegisteredAllTheTimeIsWarnedOfOnceByName) {
  const Warnings warnings;
  for (std::uint32_t i = 0; i < 3 * RegistrationRate::kMostPerWindow; ++i) {
    EXPECT_TRUE(i > RegistrationRate::kMostPerWindow || warnings.lines().empty());
    const RegionKey key = table.add(source())->key;
    ASSERT_TRUE(table.remove(key, deadline_in(milliseconds(0))).ok());
  }
  ASSERT_EQ(warnings.lines().size(), 1U);
  const std::string line = warnings.lines().front();
  const auto address = address_text(reinterpret_cast<std::uint64_t>(memory.data()));
  for (const std::string& word :
       {std::string("registered_too_often"), address, std::string("bytes=4096"), std::string("name=layer.0"),
        std::string("times=61"), std::string("register this memory once")}) {
    EXPECT_NE(line.find(word), std::string::npos) << word << " is missing in " << line;
  }
}

TEST_F(RegionTableFixture, WhatTheStoreRegistersForItsCallsIsNotWarnedOf) {
  const Warnings warnings;
  RegionSource own = source();
  own.name = "kvferry.store.call";
  for (std::uint32_t i = 0; i < 2 * RegistrationRate::kMostPerWindow; ++i) {
    ASSERT_TRUE(table.remove(table.add(own)->key, deadline_in(milliseconds(0))).ok());
  }
  EXPECT_TRUE(warnings.lines().empty()) << warnings.lines().front();
}

TEST(RegistrationRate, WarnsAtMostOnceAMinuteAndForgetsWhatIsOld) {
  RegistrationRate rate;
  const Clock::time_point start = Clock::now();
  const auto repeat = [&](std::uint64_t address, std::uint32_t times, std::chrono::seconds at) {
    std::uint32_t warnings = 0;
    for (std::uint32_t i = 0; i < times; ++i) warnings += rate.count(address, 64, start + at) ? 1U : 0U;
    return warnings;
  };
  const auto most = RegistrationRate::kMostPerWindow;
  EXPECT_EQ(repeat(1, most, std::chrono::seconds(0)), 0U);
  EXPECT_EQ(repeat(1, most, std::chrono::seconds(61)), 0U) << "those of the minute before do not count";
  EXPECT_EQ(repeat(1, 5, std::chrono::seconds(62)), 1U);
  EXPECT_EQ(repeat(2, 2 * most, std::chrono::seconds(63)), 0U) << "another range within the same minute";
  EXPECT_EQ(repeat(2, 2 * most, std::chrono::seconds(125)), 1U);
}

TEST(RegistrationRate, MemoryThatChangesAllTheTimeIsNotRememberedWithoutEnd) {
  RegistrationRate rate;
  const Clock::time_point now = Clock::now();
  for (std::uint64_t i = 0; i < RegistrationRate::kMaxRanges; ++i) EXPECT_FALSE(rate.count(i, 64, now));
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(rate.count(UINT64_MAX, 64, now)) << "no room to count it";
  for (std::uint32_t i = 1; i < RegistrationRate::kMostPerWindow; ++i) EXPECT_FALSE(rate.count(7, 64, now));
  EXPECT_EQ(rate.count(7, 64, now), RegistrationRate::kMostPerWindow + 1);
}

TEST_F(RegionTableFixture, RemoveWaitsForPinsAndHidesTheRegionAtOnce) {
  const RegionKey key = table.add(source())->key;
  std::optional<RegionTable::Pin> pin = std::move(table.pin(key)).value();
  const Status late = table.remove(key, deadline_in(milliseconds(20)));
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
  EXPECT_NE(late.message().find("still used by 1"), std::string::npos) << late.message();
  EXPECT_EQ(table.pin(key).status().code(), Code::kStale);
  EXPECT_EQ(table.find(key.id).status().code(), Code::kStale);
  EXPECT_TRUE(table.list().empty());
  EXPECT_EQ(peer_view->still_current(key).code(), Code::kStale);
  EXPECT_NE(table.add(source(4096))->key.id, key.id) << "the id is not free while the memory is pinned";
  std::jthread releaser([&] {
    std::this_thread::sleep_for(milliseconds(20));
    pin.reset();
  });
  EXPECT_TRUE(table.remove(key, deadline_in(milliseconds(20000))).ok()) << "remove may be called again";
}

TEST_F(RegionTableFixture, RemoveWaitsForPeersThatCopyWithoutAsking) {
  const RegionKey key = table.add(source())->key;
  int calls = 0;
  table.set_quiesce([&](Deadline) {
    EXPECT_EQ(peer_view->still_current(key).code(), Code::kStale) << "hidden before the wait";
    return ++calls == 1 ? Status(Code::kDeadlineExceeded, "busy") : Status();
  });
  EXPECT_EQ(table.remove(key, deadline_in(milliseconds(5))).to_string(),
            "deadline_exceeded: region 1 generation 1: busy");
  EXPECT_TRUE(table.remove(key, deadline_in(milliseconds(5))).ok());
}

TEST_F(RegionTableFixture, KnowsTheNumaNodeOfItsMemory) {
  const RegionKey before = table.add(source())->key;
  EXPECT_EQ(table.pin(before)->numa_node(), -1) << "nobody looks where there is one node";
  const auto node_of = [&](std::string name) {  // of the same memory, as another region
    RegionSource other = source();
    other.name = std::move(name);
    return table.pin(table.add(other)->key)->numa_node();
  };
  std::optional<int> answer = 3;
  table.set_node_of([&](const void* data, std::uint64_t length) {
    EXPECT_EQ(data, source().data);
    EXPECT_EQ(length, source().length);
    return answer;
  });
  EXPECT_EQ(node_of("second"), 3);
  answer.reset();
  EXPECT_EQ(node_of("third"), -1) << "on several, or unknown";
}

TEST_F(RegionTableFixture, UnmappedMemoryIsRefused) {
  void* const gone = ::mmap(nullptr, 1u << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ::munmap(gone, 1u << 20);
  RegionSource bad = source();
  bad.data = gone;
  const auto status = table.add(bad).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("layer.0"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("not mapped"), std::string::npos) << status.message();
}

TEST_F(RegionTableFixture, ReadOnlyMemoryMayNotBeOfferedForWriting) {
  void* const page = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  RegionSource bad = source();
  bad.data = page;
  EXPECT_TRUE(table.add(bad).ok());
  bad.access = kRemoteRead | kRemoteWrite;
  EXPECT_EQ(table.add(bad).status().code(), Code::kInvalidArgument);
  ::munmap(page, 4096);
}

TEST_F(RegionTableFixture, OtherKindsAreRefusedByName) {
  RegionSource bad = source();
  bad.kind = MemoryKind::kDax;
  const auto status = table.add(bad).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("'dax'"), std::string::npos) << status.message();
}

TEST_F(RegionTableFixture, BadArgumentsAreRefused) {
  RegionSource bad = source();
  bad.data = nullptr;
  EXPECT_EQ(table.add(bad).status().code(), Code::kInvalidArgument);
  bad = source(0, 0);
  EXPECT_EQ(table.add(bad).status().code(), Code::kInvalidArgument);
  bad = source(0, UINT64_MAX);
  EXPECT_EQ(table.add(bad).status().code(), Code::kInvalidArgument);
  bad = source();
  bad.name.assign(kMaxRegionNameBytes + 1, 'n');
  EXPECT_EQ(table.add(bad).status().code(), Code::kInvalidArgument);
  bad = source();
  bad.access = 8;
  EXPECT_EQ(table.add(bad).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(table.list().empty());
}

TEST_F(RegionTableFixture, FullTableSaysSoAndRecovers) {
  RegionKey last;
  for (std::uint32_t i = 0; i < kMaxRegions; ++i) last = table.add(source(i, 1))->key;
  EXPECT_EQ(table.add(source()).status().code(), Code::kResourceExhausted);
  EXPECT_TRUE(table.remove(last, deadline_in(milliseconds(0))).ok());
  EXPECT_EQ(table.add(source())->key, (RegionKey{kMaxRegions, 2}));
}

TEST_F(RegionTableFixture, DestroyedTableWithdrawsItsRegions) {
  auto second = std::make_unique<RegionTable>(&*directory, false);
  const RegionKey key = second->add(source())->key;
  EXPECT_TRUE(peer_view->still_current(key).ok());
  second.reset();
  EXPECT_EQ(peer_view->still_current(key).code(), Code::kStale);
}

TEST_F(RegionTableFixture, NobodyTouchesMemoryAfterRemove) {
  std::atomic<bool> stop = false;
  std::atomic<std::uint32_t> live_generation = 0;
  std::atomic<std::uint64_t> pinned = 0;
  std::vector<std::jthread> users;
  for (int t = 0; t < 3; ++t) {
    users.emplace_back([&] {
      for (; !stop; std::this_thread::yield()) {
        const auto info = table.find(1);
        if (!info.ok()) continue;
        const auto pin = table.pin(info->key);
        if (!pin.ok()) continue;
        ++pinned;
        // While pinned, this generation cannot have been removed.
        EXPECT_EQ(live_generation.load(), pin->key().generation);
      }
    });
  }
  for (std::uint32_t round = 1; round <= 100 || (pinned == 0 && round < 100000); ++round) {
    live_generation = round;
    const auto info = table.add(source());
    EXPECT_EQ(info->key, (RegionKey{1, round}));
    std::this_thread::yield();
    EXPECT_TRUE(table.remove(info->key, deadline_in(milliseconds(20000))).ok());
    live_generation = 0;
  }
  stop = true;
  EXPECT_GT(pinned, 0U);
}

TEST(RegionTablePin, OutlivesMovesAndReleasesOnce) {
  std::vector<std::byte> memory(64);
  RegionTable table(nullptr, false);
  const RegionKey key = table.add({memory.data(), 64, "x", kRemoteRead, MemoryKind::kHost, 0, 0})->key;
  RegionTable::Pin first = std::move(table.pin(key)).value();
  RegionTable::Pin second = std::move(first);
  EXPECT_FALSE(first.held());  // NOLINT(bugprone-use-after-move): the moved-from state is defined
  first = std::move(table.pin(key)).value();
  second = std::move(first);
  EXPECT_EQ(table.remove(key, deadline_in(milliseconds(0))).code(), Code::kDeadlineExceeded);
  second.release();
  second.release();
  EXPECT_TRUE(table.remove(key, deadline_in(milliseconds(0))).ok());
}

}  // namespace
}  // namespace kvferry
