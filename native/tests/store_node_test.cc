// Nodes of the store among themselves: puts, reads, conflicts, replicas, members that come and go. What happens when
// processes are killed is in store_fault_test.cc.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "store_cluster.h"

namespace kvferry::store {
namespace {

using testing::digest_of_text;
using testing::kPatience;
using testing::node_options;
using testing::soon;
using testing::TestClient;
using testing::TestCluster;

std::string key_of(int number) { return "key-" + std::to_string(number); }
std::string value_of(int number) {
  return "value of " + std::to_string(number) + std::string(static_cast<std::size_t>(number % 50), '.');
}

TEST(StoreNode, AloneItStoresReadsRefusesOtherBytesAndRemoves) {
  TestCluster cluster(1);
  TestClient client = cluster.client();
  const Member& node = cluster.member(0);
  const PutDone first = client.put(node, "a", "one");
  ASSERT_TRUE(first.status.ok()) << first.status.to_string();
  EXPECT_TRUE(first.created);
  EXPECT_EQ(first.replicas, 1u);
  const PutDone again = client.put(node, "a", "one");
  EXPECT_TRUE(again.status.ok());
  EXPECT_FALSE(again.created);
  EXPECT_EQ(client.put(node, "a", "two").status.code(), Code::kConflict);
  EXPECT_EQ(client.text("a"), "one");
  EXPECT_TRUE(client.put(node, "", "").status.ok());
  EXPECT_EQ(client.text(""), "");
  EXPECT_EQ(client.get("b").status().code(), Code::kNotFound);
  EXPECT_TRUE(client.remove("a").ok());
  EXPECT_TRUE(client.remove("a").ok());
  EXPECT_EQ(client.get("a").status().code(), Code::kNotFound);
  EXPECT_TRUE(client.put(node, "a", "two").created);
  EXPECT_EQ(client.text("a"), "two");
  const NodeStats stats = cluster.node(0).stats();
  EXPECT_EQ(stats.objects, 2u);
  EXPECT_EQ(stats.counters.at("puts_total"), 3u);
  EXPECT_EQ(stats.counters.at("put_conflicts_total"), 1u);
  EXPECT_EQ(stats.counters.at("puts_there_total"), 1u);
  EXPECT_TRUE(stats.degraded.empty());
}

TEST(StoreNode, EachItemOfABatchHasItsOwnStatus) {
  TestCluster cluster(1);
  TestClient client = cluster.client();
  PutInline put;
  const std::string good = "good", empty, twice = "twice";
  const auto add = [&](std::string_view key, std::string_view value) {
    put.items.push_back({TestClient::object(key, value), digest_of_text(value), as_byte_view(value)});
  };
  add("good", good);
  add("wrong digest", good);
  put.items.back().digest.lo ^= 1;
  add("empty", empty);
  add("wrong id", good);
  put.items.back().object.id.lo ^= 1;
  add("twice", twice);
  add("twice", twice);
  add("wrong size", good);
  ++put.items.back().object.bytes;
  const auto answer = client.ask(cluster.member(0), put);
  ASSERT_TRUE(answer.ok()) << answer.status().to_string();
  const std::vector<Code> expected{Code::kOk, Code::kDataCorrupt,    Code::kOk, Code::kInvalidArgument, Code::kOk,
                                   Code::kOk, Code::kInvalidArgument};
  ASSERT_EQ((*answer)->results.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ((*answer)->results[i].status.code(), expected[i]) << i;
  EXPECT_NE((*answer)->results[4].created, (*answer)->results[5].created);
  EXPECT_EQ(client.text("twice"), twice);
}

// One node stood still: the others had forgotten it, and it does not know.
TEST(StoreNode, AMemberThatWasForgottenTellsAllOnceMore) {
  TestCluster cluster(3);
  ASSERT_TRUE(cluster.settle());
  TestClient client = cluster.client();
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(client.put(cluster.member(0), key_of(i), value_of(i)).status.ok());
  for (const std::size_t other : {1u, 2u}) {
    cluster.node(other).set_members(100, {cluster.member(1), cluster.member(2)});
    EXPECT_EQ(cluster.node(other).stats().directory_entries, 0u);
    cluster.node(other).set_members(101, cluster.living());
  }
  EXPECT_TRUE(soon([&] {
    return cluster.node(1).stats().directory_entries + cluster.node(2).stats().directory_entries > 10 &&
           cluster.settle();
  }));
  for (int i = 0; i < 30; ++i) EXPECT_TRUE(client.remove(key_of(i)).ok());
  for (int i = 0; i < 30; ++i) EXPECT_EQ(cluster.holders(key_of(i)), 0u) << i;
}

// The owner of a key stood still while it was removed; it held a copy itself.
TEST(StoreNode, WhatWasRemovedWhileItsOwnerWasAwayStaysRemoved) {
  TestCluster cluster(2);
  ASSERT_TRUE(cluster.settle());
  TestClient client = cluster.client();
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(client.put(cluster.member(0), key_of(i), value_of(i)).status.ok());
  cluster.node(1).set_members(100, {cluster.member(1)});
  TestClient other;
  other.know({cluster.member(1)});
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(other.remove(key_of(i)).ok());
  cluster.node(1).set_members(101, cluster.living());
  EXPECT_TRUE(soon([&] {
    for (int i = 0; i < 40; ++i) {
      if (cluster.holders(key_of(i)) != 0) return false;
    }
    return true;
  }));
}

// Field case 4.8 among nodes: whatever is told must be what is held, so that a removal finds every copy.
TEST(StoreNode, RacesLeaveNoCopyThatNobodyKnows) {
  TestCluster cluster(3);
  ASSERT_TRUE(cluster.settle());
  TestClient client = cluster.client();
  for (int round = 0; round < 20; ++round) {
    std::vector<std::thread> threads;
    for (std::size_t who = 0; who < 3; ++who) {
      threads.emplace_back([&, who] {
        TestClient writer = cluster.client();
        for (int i = 0; i < 20; ++i) {
          (void)writer.put(cluster.member(who), key_of(i % 5), value_of(static_cast<int>(i % 2 == 0 ? who : 0)));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(client.remove(key_of(i)).ok());
      EXPECT_EQ(cluster.holders(key_of(i)), 0u) << i;
    }
  }
}

// The same with removals in between, which race with the puts.
TEST(StoreNode, RacesWithRemovalsLeaveNoCopyThatNobodyKnows) {
  TestCluster cluster(3);
  ASSERT_TRUE(cluster.settle());
  std::vector<std::thread> threads;
  for (std::size_t who = 0; who < 3; ++who) {
    threads.emplace_back([&, who] {
      TestClient client = cluster.client();
      for (int i = 0; i < 600; ++i) {
        const std::string key = key_of(i / 6 % 5);
        (void)client.put(cluster.member(who), key, value_of(static_cast<int>(i % 2 == 0 ? who : 0)));
        if (i % 3 == 2) (void)client.remove(key);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  TestClient client = cluster.client();
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(client.remove(key_of(i)).ok());
    EXPECT_EQ(cluster.holders(key_of(i)), 0u) << i;
  }
}

TEST(StoreNode, EveryClientFindsWhatAnyNodeHolds) {
  TestCluster cluster(3);
  ASSERT_TRUE(cluster.settle());
  TestClient client = cluster.client();
  for (int i = 0; i < 60; ++i) {
    const PutDone put = client.put(cluster.member(static_cast<std::size_t>(i % 3)), key_of(i), value_of(i));
    ASSERT_TRUE(put.status.ok()) << put.status.to_string();
    EXPECT_TRUE(put.created);
  }
  for (int i = 0; i < 60; ++i) {
    const auto got = client.get(key_of(i));
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_EQ(*got, value_of(i));
    EXPECT_EQ(cluster.holders(key_of(i)), 1u);
    // The same bytes at another node: one more replica. Other bytes: refused, wherever.
    EXPECT_EQ(client.put(cluster.member(static_cast<std::size_t>((i + 1) % 3)), key_of(i), "other").status.code(),
              Code::kConflict);
    const PutDone same = client.put(cluster.member(static_cast<std::size_t>((i + 2) % 3)), key_of(i), value_of(i));
    EXPECT_TRUE(same.status.ok());
    EXPECT_FALSE(same.created);
    EXPECT_EQ(same.replicas, 2u);
  }
  for (int i = 0; i < 60; ++i) EXPECT_TRUE(client.remove(key_of(i)).ok());
  for (int i = 0; i < 60; ++i) {
    EXPECT_EQ(client.get(key_of(i)).status().code(), Code::kNotFound);
    EXPECT_EQ(cluster.holders(key_of(i)), 0u);
  }
}

TEST(StoreNode, ReplicasGoToDistinctHosts) {
  TestCluster cluster(3);
  ASSERT_TRUE(cluster.settle());
  TestClient client = cluster.client();
  for (int i = 0; i < 12; ++i) {
    const PutDone put = client.put(cluster.member(0), key_of(i), value_of(i), 2);
    ASSERT_TRUE(put.status.ok()) << put.status.to_string();
    EXPECT_EQ(put.replicas, 2u);
    EXPECT_EQ(cluster.holders(key_of(i)), 2u);
    EXPECT_TRUE(cluster.holds(0, key_of(i)));
  }
  EXPECT_EQ(client.put(cluster.member(1), "all", "bytes", 9).replicas, 3u);  // no more than there are
}

TEST(StoreNode, ExistsMatchAndFindSayWhereThingsAre) {
  TestCluster cluster(2);
  ASSERT_TRUE(cluster.settle());
  TestClient client = cluster.client();
  std::vector<ObjectId> owned;  // by node 0, held by node 1
  for (int i = 0; owned.size() < 5; ++i) {
    if (client.owner(key_of(i)).node_id != cluster.member(0).node_id) continue;
    ASSERT_TRUE(client.put(cluster.member(1), key_of(i), value_of(i)).status.ok());
    owned.push_back(TestClient::id_of(key_of(i)));
  }
  owned.insert(owned.begin() + 3, ObjectId{1, 1});
  const auto match = client.ask(cluster.member(0), Match{owned});
  ASSERT_TRUE(match.ok());
  EXPECT_EQ((*match)->count, 3u);
  const auto exists = client.ask(cluster.member(0), Exists{owned});
  ASSERT_TRUE(exists.ok());
  EXPECT_EQ((*exists)->found, (std::vector<bool>{true, true, true, false, true, true}));
  const auto found = client.ask(cluster.member(0), Find{owned});
  ASSERT_TRUE(found.ok());
  EXPECT_FALSE((*found)->results[0].held);  // it is at the other one
}

TEST(StoreNode, RacingPutsOfOneKeyEndWithOneValue) {
  TestCluster cluster(3);
  ASSERT_TRUE(cluster.settle());
  constexpr int kClients = 8, kRounds = 25;
  std::vector<std::thread> threads;
  std::array<std::atomic<int>, kRounds> created{}, accepted{};
  for (int c = 0; c < kClients; ++c) {
    threads.emplace_back([&, c] {
      TestClient client = cluster.client();
      for (int round = 0; round < kRounds; ++round) {
        // Half of the rounds all put the same bytes.
        const std::string value = round % 2 == 0 ? "same" : "of " + std::to_string(c);
        const PutDone put = client.put(cluster.member(static_cast<std::size_t>(c % 3)), key_of(round), value);
        EXPECT_TRUE(put.status.ok() || put.status.code() == Code::kConflict) << put.status.to_string();
        accepted[static_cast<std::size_t>(round)] += put.status.ok() ? 1 : 0;
        created[static_cast<std::size_t>(round)] += put.created ? 1 : 0;
        if (put.status.ok()) {
          EXPECT_EQ(client.text(key_of(round)), value);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  TestClient client = cluster.client();
  for (int round = 0; round < kRounds; ++round) {
    const auto place = static_cast<std::size_t>(round);
    EXPECT_LE(created[place], 1) << round;
    if (round % 2 == 0) {
      EXPECT_EQ(accepted[place], kClients) << round;
      EXPECT_EQ(client.text(key_of(round)), "same");
    } else {
      EXPECT_LE(accepted[place], 1) << round;
    }
  }
}

TEST(StoreNode, AMemberThatJoinsLearnsOnlyWhatItOwnsAndNothingIsEverAbsent) {
  TestCluster cluster(2);
  ASSERT_TRUE(cluster.settle());
  TestClient client = cluster.client();
  constexpr int kKeys = 300;
  for (int i = 0; i < kKeys; ++i) {
    ASSERT_TRUE(client.put(cluster.member(static_cast<std::size_t>(i % 2)), key_of(i), value_of(i)).status.ok());
  }
  const std::uint64_t before = cluster.counter(0, "announced_total") + cluster.counter(1, "announced_total");
  TestClient other = cluster.client();
  std::jthread reader([&](const std::stop_token& stop) {
    std::mt19937 random(3);
    while (!stop.stop_requested()) {
      const int i = static_cast<int>(random() % kKeys);
      const auto got = other.get(key_of(i));
      EXPECT_TRUE(got.ok() && *got == value_of(i)) << i << ": " << got.status().to_string();
    }
  });
  cluster.add();
  cluster.tell();
  EXPECT_TRUE(cluster.settle());
  client.know(cluster.living());
  for (int i = 0; i < kKeys; ++i) {
    const auto got = client.get(key_of(i));
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_EQ(*got, value_of(i));
  }
  reader.request_stop();
  reader.join();
  const std::uint64_t told = cluster.counter(0, "announced_total") + cluster.counter(1, "announced_total") - before;
  EXPECT_GT(told, kKeys / 6u);
  EXPECT_LT(told, kKeys * 2u / 3);  // a third, but for chance and for what was told twice
}

TEST(StoreNode, OneThatIsPassedOverIsHeardOfAndTakenBack) {
  std::atomic<int> heard{0};  // these outlive the nodes, which use them
  NodeId passed_over;
  TestCluster cluster(3);
  ASSERT_TRUE(cluster.settle());
  passed_over = cluster.member(2).node_id;
  cluster.node(0).on_heard([&](const NodeId& node) { heard += node == passed_over ? 1 : 1000; });
  cluster.tell_all_but(2);
  EXPECT_TRUE(soon([&] { return heard > 0; }));
  EXPECT_LT(heard, 1000);
  cluster.tell();
  EXPECT_TRUE(cluster.settle());
}

TEST(StoreNode, AMemberThatIsSuspectedIsPassedOverAndReported) {
  TestCluster cluster(3);
  ASSERT_TRUE(cluster.settle());
  std::atomic<int> suspected{0};
  const NodeId dead = cluster.member(2).node_id;
  cluster.node(0).on_suspect([&](const NodeId& node) { suspected += node == dead ? 1 : 100; });
  TestClient client = cluster.client();
  cluster.kill(2);
  EXPECT_TRUE(soon([&] { return suspected == 1; }));
  for (int i = 0; i < 30; ++i) {  // a third of the ids has a dead owner
    const PutDone put = client.put(cluster.member(0), key_of(i), value_of(i));
    EXPECT_TRUE(put.status.ok()) << put.status.to_string();
    EXPECT_EQ(client.text(key_of(i)), value_of(i));
    EXPECT_EQ(client.put(cluster.member(1), key_of(i), "other").status.code(), Code::kConflict);
  }
  EXPECT_EQ(cluster.node(0).stats().degraded.size(), 1u);
  cluster.tell();
  EXPECT_TRUE(cluster.settle());
  EXPECT_TRUE(cluster.node(0).stats().degraded.empty());
  client.know(cluster.living());
  for (int i = 0; i < 30; ++i) EXPECT_EQ(client.text(key_of(i)), value_of(i));
  EXPECT_EQ(suspected, 1);
}

TEST(StoreNode, ReplicasAreRepairedAfterADeath) {
  TestCluster cluster(3);
  ASSERT_TRUE(cluster.settle());
  TestClient client = cluster.client();
  constexpr int kKeys = 60;
  for (int i = 0; i < kKeys; ++i) {
    ASSERT_EQ(client.put(cluster.member(static_cast<std::size_t>(i % 3)), key_of(i), value_of(i), 2).replicas, 2u);
  }
  cluster.kill(1);
  cluster.tell();
  client.know(cluster.living());
  for (int i = 0; i < kKeys; ++i) {
    const auto got = client.get(key_of(i));
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_EQ(*got, value_of(i));
  }
  for (int i = 0; i < kKeys; ++i) EXPECT_TRUE(soon([&] { return cluster.holders(key_of(i)) == 2; })) << i;
}

TEST(StoreNode, WhatIsReadOftenFromElsewhereGetsAReplicaThere) {
  NodeOptions options = node_options();
  options.hot_reads = 4;
  TestCluster cluster(2, options);
  ASSERT_TRUE(cluster.settle());
  TestClient writer = cluster.client();
  ASSERT_TRUE(writer.put(cluster.member(0), "hot", "value").status.ok());
  TestClient reader = cluster.client(cluster.member(1).node_id);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(reader.ask(cluster.member(0), GetInline{{{TestClient::id_of("hot"), 0, UINT64_MAX}}}).ok());
  }
  EXPECT_FALSE(cluster.holds(1, "hot"));
  ASSERT_TRUE(reader.ask(cluster.member(0), GetInline{{{TestClient::id_of("hot"), 0, UINT64_MAX}}}).ok());
  EXPECT_TRUE(soon([&] { return cluster.holds(1, "hot"); }));
  EXPECT_TRUE(cluster.node(1).store().describe(TestClient::id_of("hot"))->extra);
}

TEST(StoreNode, DrainMovesAllAwayAndTakesNoMorePuts) {
  TestCluster cluster(2);
  ASSERT_TRUE(cluster.settle());
  TestClient client = cluster.client();
  for (int i = 0; i < 150; ++i) ASSERT_TRUE(client.put(cluster.member(0), key_of(i), value_of(i)).status.ok());
  const auto left = cluster.node(0).drain(kPatience);
  ASSERT_TRUE(left.ok());
  EXPECT_EQ(*left, 0u);
  EXPECT_EQ(cluster.node(0).stats().objects, 0u);
  EXPECT_EQ(client.put(cluster.member(0), "more", "x").status.code(), Code::kUnavailable);
  for (int i = 0; i < 150; ++i) EXPECT_EQ(client.text(key_of(i)), value_of(i));
  cluster.kill(0);
  cluster.tell();
  client.know(cluster.living());
  for (int i = 0; i < 150; ++i) EXPECT_EQ(client.text(key_of(i)), value_of(i));
}

// Others may be told first that it leaves: what it holds is then fetched over the connections that it made itself.
TEST(StoreNode, ANodeThatIsNoMemberAnyMoreCanStillBeDrained) {
  TestCluster cluster(3);
  ASSERT_TRUE(cluster.settle());
  TestClient client = cluster.client();
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(client.put(cluster.member(0), key_of(i), value_of(i)).status.ok());
  const std::vector<Member> others{cluster.member(1), cluster.member(2)};
  cluster.node(1).set_members(100, others);
  cluster.node(2).set_members(100, others);
  const auto left = cluster.node(0).drain(kPatience);
  ASSERT_TRUE(left.ok());
  EXPECT_EQ(*left, 0u);
  client.know(others);
  for (int i = 0; i < 30; ++i) EXPECT_EQ(client.text(key_of(i)), value_of(i));
}

TEST(StoreNode, PrefetchBringsWhatOthersHold) {
  TestCluster cluster(2);
  ASSERT_TRUE(cluster.settle());
  TestClient client = cluster.client();
  ASSERT_TRUE(client.put(cluster.member(0), "a", "value").status.ok());
  const Prefetch prefetch{{TestClient::id_of("a"), TestClient::id_of("nowhere")}, kPatience};
  ASSERT_TRUE(client.ask(cluster.member(1), prefetch).ok());
  EXPECT_TRUE(soon([&] { return cluster.holds(1, "a"); }));
  const auto again = client.ask(cluster.member(1), Pull{{}, {TestClient::id_of("nowhere")}, false, false, kPatience});
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)->results.at(0).code(), Code::kNotFound);
}

TEST(StoreNode, WhatIsPushedOutGoesToANodeThatHasRoom) {
  NodeOptions small = node_options(4u << 20);
  small.demote_to_remote = true;
  TestCluster cluster(1, small);
  cluster.add(node_options(64u << 20));
  cluster.tell();
  ASSERT_TRUE(cluster.settle());
  TestClient client = cluster.client();
  const std::string large(200u << 10, 'x');
  constexpr int kKeys = 40;  // twice what the first node has room for
  for (int i = 0; i < kKeys; ++i) {
    const PutDone put = client.put(cluster.member(0), key_of(i), large + key_of(i));
    ASSERT_TRUE(put.status.ok()) << put.status.to_string();
  }
  EXPECT_GT(cluster.counter(0, "moved_to_nodes_total"), 10u);
  for (int i = 0; i < kKeys; ++i) EXPECT_EQ(client.text(key_of(i)), large + key_of(i)) << i;
}

TEST(StoreNode, AClientThatAttachesAgainKeepsItsPage) {
  TestCluster cluster(1);
  const auto rpc = RpcEndpoint::create({}, nullptr, {1});
  ASSERT_TRUE(rpc.ok());
  const ProcessRef self = ProcessRef::self();
  const auto attach = [&](std::uint64_t ended) {
    const auto peer = (*rpc)->engine().connect(cluster.member(0).endpoint, {}, kPatience);
    EXPECT_TRUE(peer.ok());
    Attach request;
    request.cluster = "local";
    request.pid = static_cast<std::uint32_t>(self.pid);
    request.process_start = self.start;
    request.shared_memory = true;
    request.ended_session = ended;
    auto answer = (*rpc)->call((*peer)->handle(), request, deadline_in(kPatience));
    EXPECT_TRUE(answer.ok()) << answer.status().to_string();
    return std::pair(*peer, answer->answer);
  };
  const auto [first, page] = attach(0);
  EXPECT_EQ(page.arenas.size(), cluster.node(0).memory().arenas.size());
  NewObject object = TestClient::object("key", "12345678");
  const auto reserved = (*rpc)->call(first->handle(), Reserve{{object}}, deadline_in(kPatience));
  ASSERT_TRUE(reserved.ok());
  const std::uint64_t put = (*reserved)->results.at(0).put;
  const auto [second, other] = attach(0);
  EXPECT_NE(other.page, page.page);
  first->close();
  EXPECT_TRUE(soon([&] { return cluster.node(0).stats().clients == 1; }));
  const auto [third, again] = attach(page.session);
  EXPECT_EQ(again.page, page.page);
  EXPECT_NE(again.session, page.session);
  const auto commit = (*rpc)->call(third->handle(), Commit{{{put, {}}}}, deadline_in(kPatience));
  ASSERT_TRUE(commit.ok());
  EXPECT_EQ((*commit)->results.at(0).status.code(), Code::kNotFound);  // it ended with its session
  EXPECT_TRUE((*rpc)->call(second->handle(), Detach{}, deadline_in(kPatience)).ok());
}

TEST(StoreNode, NodesOfAnotherClusterOrUnlikeSettingsAreRefusedWithASentence) {
  TestCluster cluster(1);
  NodeOptions foreign = node_options();
  foreign.cluster = "another";
  cluster.add(foreign);
  NodeOptions unlike = node_options();
  unlike.default_replicas = 2;
  cluster.add(unlike);
  cluster.tell();
  const auto reasons = [&] {
    std::string all;
    for (const std::string& why : cluster.node(1).stats().degraded) all += why + "; ";
    for (const std::string& why : cluster.node(2).stats().degraded) all += why + "; ";
    return all;
  };
  EXPECT_TRUE(soon([&] { return reasons().find("of cluster 'local'") != std::string::npos; })) << reasons();
  EXPECT_TRUE(soon([&] { return reasons().find("default_replicas 1") != std::string::npos; })) << reasons();
  TestClient client = cluster.client();
  EXPECT_TRUE(client.put(cluster.member(0), "a", "b").status.ok());
}

TEST(StoreNode, RequestsOutOfTurnAreRefused) {
  TestCluster cluster(1);
  TestClient client = cluster.client();
  const auto peer = client.rpc().engine().connect(cluster.member(0).endpoint, {}, kPatience);
  ASSERT_TRUE(peer.ok());
  const std::uint64_t unattached = (*peer)->handle();
  EXPECT_EQ(client.rpc().call(unattached, Find{}, deadline_in(kPatience)).status().code(), Code::kPermissionDenied);
  EXPECT_TRUE(client.rpc().call(unattached, Ping{}, deadline_in(kPatience)).ok());
  Attach wrong;
  wrong.cluster = "another";
  EXPECT_EQ(client.rpc().call(unattached, wrong, deadline_in(kPatience)).status().code(), Code::kPermissionDenied);
  EXPECT_EQ(client.ask(cluster.member(0), Announce{}).status().code(), Code::kPermissionDenied);
  EXPECT_EQ(client.ask(cluster.member(0), Reserve{}).status().code(), Code::kUnsupported);
  const auto commit = client.ask(cluster.member(0), Commit{{{77, {}}}});
  ASSERT_TRUE(commit.ok());
  EXPECT_EQ((*commit)->results.at(0).status.code(), Code::kNotFound);
}

TEST(StoreNode, ReadsPutsOutOfTheClientsMemory) {
  TestCluster cluster(2);
  ASSERT_TRUE(cluster.settle());
  TestClient client = cluster.client();
  std::vector<std::byte> memory(3u << 20);
  kvferry::testing::fill(memory, 4);
  const auto region =
      client.rpc().engine().register_memory(memory.data(), memory.size(), "mine", kRemoteRead, MemoryKind::kHost);
  ASSERT_TRUE(region.ok());
  NewObject object = TestClient::object("big", "");
  object.bytes = (2u << 20) + 5;
  PutFrom put;
  put.items.push_back(
      {object,
       {{region->key, 7, 1u << 20}, {region->key, 2u << 20, (1u << 20) - 9}, {region->key, 1u << 20, 14}},
       std::nullopt});
  const auto answer = client.ask(cluster.member(0), put);
  ASSERT_TRUE(answer.ok()) << answer.status().to_string();
  ASSERT_TRUE((*answer)->results[0].status.ok()) << (*answer)->results[0].status.to_string();
  EXPECT_TRUE((*answer)->results[0].created);
  const std::vector<std::span<const std::byte>> runs{std::span(memory).subspan(7, 1u << 20),
                                                     std::span(memory).subspan(2u << 20, (1u << 20) - 9),
                                                     std::span(memory).subspan(1u << 20, 14)};
  EXPECT_EQ(cluster.node(0).store().find(object.id)->digest, digest_of(runs));
  // To the other node, as replication does it; read back by pin and one-sided reads.
  const auto pulled = client.ask(cluster.member(1), Pull{{}, {object.id}, false, false, kPatience});
  ASSERT_TRUE(pulled.ok()) << pulled.status().to_string();
  EXPECT_TRUE((*pulled)->results[0].ok()) << (*pulled)->results[0].to_string();
  const auto pinned = client.ask(cluster.member(1), Pin{{object.id}, false});
  ASSERT_TRUE(pinned.ok());
  const Pin::Done& pin = (*pinned)->results[0];
  ASSERT_TRUE(pin.status.ok());
  EXPECT_EQ(pin.held.digest, digest_of(runs));
  const auto unpinned = client.ask(cluster.member(1), Unpin{{pin.pin, pin.pin}});
  ASSERT_TRUE(unpinned.ok());
  EXPECT_EQ((*unpinned)->held, (std::vector<bool>{true, false}));
}

TEST(StoreNode, ListsAndTagsSpanMessages) {
  TestCluster cluster(1);
  TestClient client = cluster.client();
  for (int i = 0; i < 20; ++i) {
    PutInline put;
    put.items.push_back({TestClient::object(key_of(i), "v"), digest_of_text("v"), as_byte_view("v")});
    put.items.back().object.tags = {i % 2 == 0 ? "even" : "odd"};
    ASSERT_TRUE(client.ask(cluster.member(0), put).ok());
  }
  const auto listed = client.ask(cluster.member(0), List{"", "key-1", "key-10", 5});
  ASSERT_TRUE(listed.ok());
  ASSERT_EQ((*listed)->objects.size(), 5u);
  EXPECT_EQ((*listed)->objects[0].key, "key-11");
  const auto even = client.ask(cluster.member(0), WithTag{"", "even", {}});
  ASSERT_TRUE(even.ok());
  EXPECT_EQ((*even)->ids.size(), 10u);
  const auto rest = client.ask(cluster.member(0), WithTag{"", "even", (*even)->ids[6]});
  ASSERT_TRUE(rest.ok());
  EXPECT_EQ((*rest)->ids.size(), 3u);
}

}  // namespace
}  // namespace kvferry::store
