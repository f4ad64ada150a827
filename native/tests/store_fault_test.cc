// Nodes and clients of the store that are killed, stopped and started anew. What is read is right or absent; what a
// living node holds is never absent.
#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "child_process.h"
#include "kvferry/store.h"
#include "store_cluster.h"

namespace kvferry::store {
namespace {

using kvferry::testing::ChildProcess;
using testing::kPatience;
using testing::node_options;
using testing::soon;
using testing::TestClient;
using testing::TestCluster;

std::string key_of(int number) { return "key-" + std::to_string(number); }
// Fully told by the key, so that a wrong byte shows.
std::string value_of(std::string_view key) { return std::string(key) + ":" + std::string(key.size() * 9, key.back()); }

// Node processes on pretended hosts, that know each other.
class Processes {
 public:
  explicit Processes(std::size_t count, milliseconds suspect_after = node_options().suspect_after)
      : suspect_ms_(std::to_string(suspect_after.count())) {
    for (std::size_t i = 0; i < count; ++i) start();
    tell();
  }
  std::size_t start() {
    nodes_.push_back(
        std::make_unique<ChildProcess>(KVFERRY_STORE_CHILD, std::vector<std::string>{"node", "16", suspect_ms_}));
    EXPECT_TRUE(nodes_.back()->running());
    const ChildProcess& node = *nodes_.back();
    members_.push_back({node.node_id(), node.endpoint(), "host" + std::to_string(nodes_.size()), 0});
    return nodes_.size() - 1;
  }
  void kill(std::size_t index) {
    nodes_[index]->signal(SIGKILL);
    nodes_[index]->reap();
    nodes_[index].reset();
  }
  void tell(std::optional<std::size_t> all_but = std::nullopt) {
    std::string line = std::to_string(++view_);
    for (const Member& member : living(all_but)) {
      line += " " + member.node_id.to_string() + "," + member.endpoint.to_string() + "," + member.host;
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i] || i == all_but) continue;
      nodes_[i]->tell(line);
      EXPECT_EQ(nodes_[i]->read_line(), "told");
    }
  }
  std::vector<Member> living(std::optional<std::size_t> all_but = std::nullopt) const {
    std::vector<Member> out;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i] && i != all_but) out.push_back(members_[i]);
    }
    return out;
  }
  const ChildProcess& operator[](std::size_t index) const { return *nodes_[index]; }
  const Member& member(std::size_t index) const { return members_[index]; }
  TestClient client() const {
    TestClient out;
    out.know(living());
    return out;
  }
  // Each knows the others well enough to answer for what it owns.
  ::testing::AssertionResult settle(TestClient& client) const {
    std::string why;
    const bool settled = soon([&] {
      why.clear();
      for (const Member& member : living()) why += unsettled(client, member);
      return why.empty();
    });
    return settled ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << why;
  }

 private:
  static std::string unsettled(TestClient& client, const Member& member) {
    const std::string name = member.host + ": ";
    const auto stats = client.ask(member, Stats{});
    if (!stats.ok()) return name + stats.status().to_string() + "\n";
    for (const std::string& reason : (*stats)->degraded) return name + reason + "\n";
    const auto ping = client.ask(member, Ping{});
    return ping.ok() && (*ping)->settled ? "" : name + "not settled\n";
  }

  const std::string suspect_ms_;
  std::vector<std::unique_ptr<ChildProcess>> nodes_;
  std::vector<Member> members_;
  std::uint64_t view_ = 0;
};

TEST(StoreFaults, AfterKillsOfHoldersAndOwnersReplicasServeAndTheRestIsAbsent) {
  Processes nodes(3);
  TestClient client = nodes.client();
  ASSERT_TRUE(nodes.settle(client));
  constexpr int kKeys = 90;
  for (int i = 0; i < kKeys; ++i) {  // every second one has a replica
    const std::string key = key_of(i), value = value_of(key);
    const PutDone put = client.put(nodes.member(static_cast<std::size_t>(i % 3)), key, value, i % 2 == 0 ? 2 : 1);
    ASSERT_TRUE(put.status.ok()) << put.status.to_string();
  }
  nodes.kill(1);
  int absent = 0;
  for (int i = 0; i < kKeys; ++i) {  // the others have not been told yet
    const auto got = client.get(key_of(i));
    if (got.ok()) {
      EXPECT_EQ(*got, value_of(key_of(i)));
      continue;
    }
    EXPECT_TRUE(i % 2 == 1 && i % 3 == 1) << key_of(i) << ": " << got.status().to_string();
    ++absent;
  }
  EXPECT_EQ(absent, 15);
  nodes.tell();
  client.know(nodes.living());
  for (int i = 0; i < kKeys; ++i) {
    const auto got = client.get(key_of(i));
    if (i % 2 == 0 || i % 3 != 1) {
      ASSERT_TRUE(got.ok()) << key_of(i) << ": " << got.status().to_string();
      EXPECT_EQ(*got, value_of(key_of(i)));
    } else {
      EXPECT_EQ(got.status().code(), Code::kNotFound);
      const std::string other = "new " + key_of(i);  // nobody holds the old bytes: the key is free again
      const PutDone put = client.put(nodes.member(0), key_of(i), other);
      EXPECT_TRUE(put.status.ok()) << put.status.to_string();
      EXPECT_EQ(client.text(key_of(i)), other);
    }
  }
}

TEST(StoreFaults, AStoppedNodeIsPassedOverAndLosesNothing) {
  Processes nodes(3);
  TestClient client = nodes.client();
  ASSERT_TRUE(nodes.settle(client));
  constexpr int kKeys = 45;
  for (int i = 0; i < kKeys; ++i) {
    const std::string key = key_of(i), value = value_of(key);
    ASSERT_TRUE(client.put(nodes.member(static_cast<std::size_t>(i % 3)), key, value, 2).status.ok());
  }
  nodes[2].signal(SIGSTOP);
  for (int i = kKeys; i < 2 * kKeys; ++i) {
    const std::string key = key_of(i), value = value_of(key);
    const PutDone put = client.put(nodes.member(static_cast<std::size_t>(i % 2)), key, value);
    EXPECT_TRUE(put.status.ok()) << put.status.to_string();
  }
  nodes[2].signal(SIGCONT);
  EXPECT_TRUE(nodes.settle(client));
  for (int i = 0; i < 2 * kKeys; ++i) EXPECT_EQ(client.text(key_of(i)), value_of(key_of(i)));
}

Code get_in_place(Store& store, std::string_view key, std::size_t bytes) {
  std::vector<std::byte> target(bytes);
  const std::span<std::byte> run(target);
  const Pieces pieces(&run, 1);
  return store.get_into({&key, 1}, {&pieces, 1}, {}).at(0).status.code();
}

// Not through others, not by what was asked of it while it stood still, not by clients of its host, who need not ask.
TEST(StoreFaults, WhatWasRemovedWhileANodeStoodStillIsNotFoundThereAnyMore) {
  constexpr milliseconds kSuspectAfter{1500};
  Processes nodes(3, kSuspectAfter);
  TestClient client = nodes.client();
  ASSERT_TRUE(nodes.settle(client));
  const std::string gone = "gone", kept = "kept", value = value_of(gone);
  const std::size_t victim = 2;
  for (const std::string& key : {gone, kept}) {
    ASSERT_TRUE(soon([&] { return client.put(nodes.member(victim), key, value).status.ok(); }));
  }
  auto opened = Store::open(nodes.member(victim).endpoint, {});
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  Store& beside = **opened;
  ASSERT_EQ(get_in_place(beside, gone, value.size()), Code::kOk);

  nodes[victim].signal(SIGSTOP);
  std::this_thread::sleep_for(kSuspectAfter);  // nobody is taken for dead sooner
  nodes.tell(victim);
  TestClient others;
  others.know(nodes.living(victim));
  ASSERT_TRUE(soon([&] { return others.remove(gone).ok(); }));
  EXPECT_NE(get_in_place(beside, gone, value.size()), Code::kOk);
  const ObjectId id = TestClient::id_of(gone);
  const auto connection = client.connection(nodes.member(victim));
  ASSERT_TRUE(connection.ok());
  auto lookup = client.rpc().start(*connection, Lookup{{id}, 1024}, deadline_in(kPatience));
  auto get = client.rpc().start(*connection, GetInline{{{id, 0, UINT64_MAX}}}, deadline_in(kPatience));
  nodes[victim].signal(SIGCONT);
  EXPECT_EQ(lookup.finish().status().code(), Code::kUnavailable);
  EXPECT_EQ(get.finish().status().code(), Code::kUnavailable);
  EXPECT_NE(get_in_place(beside, gone, value.size()), Code::kOk);

  nodes.tell();
  EXPECT_TRUE(nodes.settle(client));
  EXPECT_EQ(client.get(gone).status().code(), Code::kNotFound);
  EXPECT_EQ(client.text(kept), value);
  EXPECT_NE(get_in_place(beside, gone, value.size()), Code::kOk);
  EXPECT_EQ(get_in_place(beside, kept, value.size()), Code::kOk);
}

TEST(StoreFaults, AWriterKilledInMidPutLeavesNothingBehind) {
  TestCluster cluster(1);
  const std::uint64_t before = cluster.node(0).stats().dram_used;
  ChildProcess writer(KVFERRY_STORE_CHILD,
                      {"writer", cluster.node(0).endpoint().to_string(), "key", std::to_string(20u << 20)});
  ASSERT_TRUE(writer.running());
  TestClient client = cluster.client();
  EXPECT_EQ(client.get("key").status().code(), Code::kNotFound);
  EXPECT_GE(cluster.node(0).stats().dram_used, before + (20u << 20));
  writer.signal(SIGSTOP);
  writer.signal(SIGKILL);
  writer.reap();
  EXPECT_EQ(client.get("key").status().code(), Code::kNotFound);
  EXPECT_TRUE(client.put(cluster.member(0), "key", "value").created);
  EXPECT_EQ(client.text("key"), "value");
  EXPECT_TRUE(client.remove("key").ok());
  EXPECT_TRUE(soon([&] { return cluster.node(0).stats().dram_used == before; }));
  EXPECT_EQ(cluster.node(0).stats().clients, 1u);
}

TEST(StoreFaults, ALateCommitOfAnEarlierPutIsRefused) {
  NodeOptions options = node_options();
  options.reservation_lease = milliseconds(50);
  TestCluster cluster(1, options);
  NodeImpl& node = cluster.node(0);
  const SessionInfo session = node.attach_embedded();
  const auto reserve = [&] {
    auto reserved = node.call(session, Reserve{{TestClient::object("key", "12345678")}});
    EXPECT_TRUE(reserved.ok());
    return (*reserved)->results.at(0).put;
  };
  const std::uint64_t first = reserve();
  std::this_thread::sleep_for(10 * options.reservation_lease);
  const auto too_late = node.call(session, Commit{{{first, {1, 1}}}});
  EXPECT_EQ((*too_late)->results.at(0).status.code(), Code::kNotFound);
  EXPECT_FALSE(node.store().find(TestClient::id_of("key")));
  const std::uint64_t second = reserve();
  EXPECT_NE(first, second);
  const auto late = node.call(session, Commit{{{first, {1, 1}}}});
  EXPECT_EQ((*late)->results.at(0).status.code(), Code::kNotFound);
  const SessionInfo other = node.attach_embedded();
  const auto foreign = node.call(other, Commit{{{second, {1, 1}}}});
  EXPECT_EQ((*foreign)->results.at(0).status.code(), Code::kNotFound);
  node.end_embedded(session);
  node.end_embedded(other);
}

TEST(StoreFaults, UnderLoadNoByteIsWrongWhileNodesDieAndJoin) {
  Processes nodes(3);
  TestClient director = nodes.client();
  ASSERT_TRUE(nodes.settle(director));
  std::mutex mutex;
  std::vector<Member> members = nodes.living();
  std::atomic<std::uint64_t> reads{0}, hits{0}, wrong{0}, puts{0};
  const auto work = [&](const std::stop_token& stop, unsigned seed) {
    TestClient client;
    std::mt19937 random(seed);
    while (!stop.stop_requested()) {
      std::vector<Member> now;
      {
        const std::lock_guard lock(mutex);
        now = members;
      }
      client.know(now);
      const std::string key = key_of(static_cast<int>(random() % 200));
      if (random() % 3 == 0) {
        const std::string value = value_of(key);
        const PutDone put = client.put(now[random() % now.size()], key, value, 1 + random() % 2);
        puts += put.status.ok() ? 1 : 0;
        wrong += put.status.code() == Code::kConflict ? 1 : 0;  // there are no other bytes
      } else {
        const auto got = client.get(key);
        ++reads;
        hits += got.ok() ? 1 : 0;
        wrong += got.ok() && *got != value_of(key) ? 1 : 0;
      }
    }
  };
  {
    std::vector<std::jthread> workers;
    for (unsigned i = 0; i < 3; ++i) workers.emplace_back(work, 17 + i);
    for (std::size_t round = 0; round < 3; ++round) {
      const std::uint64_t before = hits;
      EXPECT_TRUE(soon([&] { return hits > before + 150; }));
      nodes.kill(round);
      nodes.start();
      nodes.tell();
      const std::lock_guard lock(mutex);
      members = nodes.living();
    }
    const std::uint64_t before = hits;
    EXPECT_TRUE(soon([&] { return hits > before + 150; }));
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(puts, 50u);
  EXPECT_GT(reads, hits);
}

}  // namespace
}  // namespace kvferry::store
