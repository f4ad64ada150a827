#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <thread>

#include "child_process.h"
#include "engine_fixture.h"
#include "process_state.h"

namespace kvferry::testing {
namespace {

const std::string kSecret = "correct horse battery staple";

struct Pair {
  explicit Pair(const EngineOptions& options = {}) : a(make_engine(options)), b(make_engine(options)) {
    near = register_buffer(*a, 1u << 20, 1);
    far = register_buffer(*b, 1u << 20, 2);
    peer = connect(*a, *b);
  }
  Piece piece(std::uint64_t local, std::uint64_t remote, std::uint64_t length) const {
    return {near.region.key.id, far.region.key.id, local, remote, length};
  }
  Buffer near, far;  // outlive the engines
  std::unique_ptr<Engine> a, b;
  std::shared_ptr<Peer> peer;
};

Code create_code(EngineOptions options) { return Engine::create(std::move(options)).status().code(); }

TEST(Engine, ChecksItsOptions) {
  EngineOptions options;
  options.transports = {"shm", "rdma"};
  const auto unknown = Engine::create(options);
  EXPECT_EQ(unknown.status().code(), Code::kInvalidArgument);
  EXPECT_NE(unknown.status().message().find("rdma"), std::string::npos);
  options = {};
  options.transports = {};
  EXPECT_EQ(create_code(options), Code::kInvalidArgument);
  options = {};
  options.bind = "0.0.0.0:0";
  const auto open = Engine::create(options);
  EXPECT_EQ(open.status().code(), Code::kInvalidArgument);
  EXPECT_NE(open.status().message().find("cluster_secret"), std::string::npos);
  options.cluster_secret = kSecret;
  EXPECT_EQ(create_code(options), Code::kInvalidArgument) << "a wildcard is not advertised";
  options.advertise = "127.0.0.1:0";
  const auto itself = Engine::create(options);
  EXPECT_EQ(itself.status().code(), Code::kInvalidArgument) << "peers elsewhere would reach themselves";
  EXPECT_NE(itself.status().message().find("advertise"), std::string::npos);
  options.advertise = "192.0.2.1:0";
  EXPECT_EQ(create_code(options), Code::kOk);
  options = {};
  options.cluster_secret = "short";
  EXPECT_EQ(create_code(options), Code::kInvalidArgument);
  options = {};
  options.fault_plan = "tcp:explode";
  EXPECT_EQ(create_code(options), Code::kInvalidArgument);
  options = {};
  options.metadata = std::string((64u << 10) + 1, 'm');
  EXPECT_EQ(create_code(options), Code::kInvalidArgument);
}

TEST(Engine, RefusesAnotherNodeThanExpectedNamingBoth) {
  auto a = make_engine(), b = make_engine();
  const NodeId expected = NodeId::random();
  const auto peer = a->connect(b->endpoint(), expected, kPatience);
  ASSERT_FALSE(peer.ok());
  EXPECT_EQ(peer.status().code(), Code::kIdentityMismatch);
  EXPECT_NE(peer.status().message().find(expected.to_string()), std::string::npos) << peer.status().message();
  EXPECT_NE(peer.status().message().find(b->node_id().to_string()), std::string::npos) << peer.status().message();
  EXPECT_TRUE(eventually([&] { return b->counters()["dropped_connections_identity_mismatch_total"] == 1; }));
  EXPECT_TRUE(a->peers().empty());
  EXPECT_FALSE(a->connect(a->endpoint(), {}, kPatience).ok()) << "a node does not connect to itself";
}

TEST(Engine, RefusesPeersWithoutTheSecret) {
  EngineOptions with, without, other;
  with.cluster_secret = kSecret;
  other.cluster_secret = kSecret + "!";
  auto a = make_engine(with), b = make_engine(with), c = make_engine(without), d = make_engine(other);
  EXPECT_TRUE(a->connect(b->endpoint(), b->node_id(), kPatience).ok());
  for (Engine* stranger : {c.get(), d.get()}) {
    EXPECT_EQ(stranger->connect(b->endpoint(), {}, kPatience).status().code(), Code::kUnauthenticated);
    EXPECT_EQ(b->connect(stranger->endpoint(), {}, kPatience).status().code(), Code::kUnauthenticated);
  }
  EXPECT_EQ(b->peers().size(), 1u);
}

TEST(Engine, SaysWhatKeptItFromConnecting) {
  auto a = make_engine(), b = make_engine();
  const Endpoint gone = b->endpoint();
  b->close();
  EXPECT_EQ(a->connect(gone, {}, kPatience).status().code(), Code::kUnavailable);
}

TEST(Engine, SharesMetadataAndRegions) {
  EngineOptions options;
  options.metadata = "first";
  auto a = make_engine(), b = make_engine(options);
  const Buffer first = register_buffer(*b, 5000, 1, kRemoteRead, "layer.0");
  auto peer = connect(*a, *b);
  EXPECT_EQ(peer->metadata(), "first");
  EXPECT_EQ(peer->regions(), std::vector<RegionInfo>{first.region});
  ASSERT_OK(b->set_metadata("second"));
  const Buffer second = register_buffer(*b, 6000, 1, kRemoteWrite, "layer.1");
  ASSERT_OK(peer->refresh(kPatience));
  EXPECT_EQ(peer->metadata(), "second");
  EXPECT_EQ(peer->regions(), (std::vector<RegionInfo>{first.region, second.region}));
  b->close();
  EXPECT_TRUE(eventually([&] { return !peer->status().ok(); }));
  EXPECT_EQ(peer->refresh(kPatience).code(), Code::kPeerLost);
}

TEST(Engine, CarriesMessagesBothWays) {
  Pair pair;
  const std::string large(1u << 20, 'x');
  for (const std::string& body : {std::string("hello"), std::string(), large}) {
    ASSERT_OK(pair.a->send(pair.peer->handle(), body, kPatience));
    const auto there = pair.b->next_message(kPatience);
    ASSERT_TRUE(there.has_value());
    EXPECT_EQ(there->body, body);
    ASSERT_OK(pair.b->send(there->peer, "re: " + body.substr(0, 10), kPatience));
    const auto back = pair.a->next_message(kPatience);
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(back->body, "re: " + body.substr(0, 10));
    EXPECT_EQ(back->peer, pair.peer->handle());
  }
  EXPECT_EQ(pair.a->send(pair.peer->handle(), large + "x", kPatience).code(), Code::kInvalidArgument);
  EXPECT_EQ(pair.a->send(999, "to nobody", kPatience).code(), Code::kNotFound);
  EXPECT_FALSE(pair.a->next_message(milliseconds(1)).has_value());
}

TEST(Engine, NamesAPeerThatIsLost) {
  Pair pair;
  pair.peer->close();
  const Status refused = pair.a->send(pair.peer->handle(), "to one that is gone", kPatience);
  EXPECT_EQ(refused.code(), Code::kNotFound);
  EXPECT_NE(refused.message().find("node " + pair.b->node_id().to_string() + " at "), std::string::npos)
      << refused.to_string();
}

TEST(Engine, PreparesOnlyWhatIsThere) {
  Pair pair;
  const auto code = [&](Piece piece) {
    return pair.a->prepare(pair.peer, std::vector<Piece>{piece}, Op::kRead).status().code();
  };
  const std::uint64_t length = pair.far.bytes.size();
  EXPECT_EQ(code(pair.piece(0, 0, length)), Code::kOk);
  EXPECT_EQ(code(pair.piece(0, 1, length)), Code::kOutOfRange);
  EXPECT_EQ(code(pair.piece(1, 0, length)), Code::kOutOfRange);
  EXPECT_EQ(code(pair.piece(0, UINT64_MAX, 2)), Code::kOutOfRange);
  EXPECT_EQ(code(pair.piece(0, 2, UINT64_MAX)), Code::kOutOfRange);
  Piece unknown = pair.piece(0, 0, 1);
  unknown.remote_region = 77;
  EXPECT_EQ(code(unknown), Code::kNotFound);
  unknown = pair.piece(0, 0, 1);
  unknown.local_region = 0;
  EXPECT_EQ(code(unknown), Code::kNotFound);
  auto plan = pair.a->prepare(pair.peer, std::vector<Piece>{pair.piece(0, 0, 1)}, Op::kRead);
  ASSERT_OK(pair.a->unregister(pair.near.region.key, kPatience));
  EXPECT_EQ(pair.a->submit(*plan, {}).status().code(), Code::kStale);
}

TEST(Engine, TheSideThatWasConnectedToCanMoveDataToo) {
  for (const char* transport : {"tcp", "shm"}) {
    Pair pair(options_for({transport}));
    const auto back = pair.b->peers().at(0);
    EXPECT_EQ(back->node_id(), pair.a->node_id());
    ASSERT_TRUE(eventually([&] { return !back->regions().empty(); }));
    const Piece piece{pair.far.region.key.id, pair.near.region.key.id, 10, 20, 100000};
    ASSERT_OK(run(*pair.b, back, {piece}, Op::kRead));
    EXPECT_EQ(pair.far.bytes[10 + 99999], pattern(1, 20 + 99999));
  }
}

TEST(Engine, CloseIsFinalAndSettlesEverything) {
  EngineOptions options = options_for({"tcp"});
  options.fault_plan = "*:hang";
  Pair pair(options);
  auto plan = pair.a->prepare(pair.peer, std::vector<Piece>{pair.piece(0, 0, 4096)}, Op::kRead);
  auto transfer = pair.a->submit(*plan, {});
  ASSERT_TRUE(transfer.ok());
  std::thread reader([&] { EXPECT_FALSE(pair.a->next_message(kPatience).has_value()); });
  std::this_thread::sleep_for(milliseconds(30));
  const auto begin = Clock::now();
  pair.a->close();
  pair.a->close();
  EXPECT_LT(Clock::now() - begin, milliseconds(10000));
  reader.join();
  ASSERT_TRUE((*transfer)->settled());
  EXPECT_EQ((*transfer)->status().code(), Code::kCancelled);
  EXPECT_EQ(pair.peer->status().code(), Code::kCancelled);
  EXPECT_EQ(pair.a->submit(*plan, {}).status().code(), Code::kCancelled);
  EXPECT_EQ(pair.a->connect(pair.b->endpoint(), {}, kPatience).status().code(), Code::kCancelled);
  EXPECT_TRUE(pair.a->peers().empty());
  pair.a.reset();
  EXPECT_EQ(pair.peer->refresh(kPatience).code(), Code::kCancelled) << "a peer outlives its engine";
}

TEST(Engine, LeaksNeitherThreadsNorDescriptors) {
  const auto once = [] {
    Pair pair;
    for (int i = 0; i < 3; ++i) {
      auto again = connect(*pair.a, *pair.b);
      ASSERT_OK(run(*pair.a, again, {pair.piece(0, 0, 100000)}, Op::kRead));
      ASSERT_GE((*start(*pair.a, again, {pair.piece(0, 0, 1)}, Op::kRead))->event_fd(), 0);
      again->close();
    }
    ASSERT_TRUE(pair.b->allocate(1u << 16, "arena", kRemoteRead).ok());
  };
  once();
  const std::size_t descriptors = open_descriptors(), threads = running_threads();
  for (int i = 0; i < 10; ++i) once();
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(running_threads(), threads);
}

TEST(Engine, LostPeersLeaveNothingBehindWhileTheEngineLives) {
  Pair pair;
  const auto cycle = [&] {
    auto peer = connect(*pair.a, *pair.b);
    ASSERT_OK(run(*pair.a, peer, {pair.piece(0, 0, 5000)}, Op::kRead));
    peer->close();
  };
  cycle();
  const auto quiet = [&] { return pair.a->peers().size() == 1 && pair.b->peers().size() == 1; };
  ASSERT_TRUE(eventually(quiet));
  cycle();
  ASSERT_TRUE(eventually(quiet));
  const std::size_t descriptors = open_descriptors();
  const std::size_t threads = running_threads();
  for (int i = 0; i < 30; ++i) cycle();
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= descriptors + 2; })) << open_descriptors() - descriptors;
  EXPECT_TRUE(eventually([&] { return running_threads() <= threads + 2; })) << running_threads() - threads;
}

TEST(Engine, UnregisterOfBusyMemoryKeepsItsDeadline) {
  EngineOptions options = options_for({"tcp"});
  options.fault_plan = "tcp:delay=300@1x1";
  Pair pair(options);
  auto transfer = start(*pair.a, pair.peer, {pair.piece(0, 0, 4096)}, Op::kRead);
  ASSERT_TRUE(transfer.ok());
  EXPECT_EQ(pair.a->unregister(pair.near.region.key, milliseconds(20)).code(), Code::kDeadlineExceeded);
  ASSERT_TRUE((*transfer)->wait(kPatience));
  EXPECT_OK((*transfer)->status());
  EXPECT_OK(pair.a->unregister(pair.near.region.key, kPatience));
}

TEST(Engine, TellsByDescriptorWhenSettled) {
  Pair pair;
  auto transfer = start(*pair.a, pair.peer, {pair.piece(0, 0, 1u << 20)}, Op::kRead);
  ASSERT_TRUE(transfer.ok());
  pollfd poller{(*transfer)->event_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&poller, 1, 20000), 1);
  EXPECT_TRUE((*transfer)->settled());
  auto settled = start(*pair.a, pair.peer, {pair.piece(0, 0, 1)}, Op::kRead);
  ASSERT_TRUE((*settled)->wait(kPatience));
  poller.fd = (*settled)->event_fd();
  EXPECT_EQ(::poll(&poller, 1, 0), 1) << "asked for only after settling";
}

TEST(Engine, CountsWhatItDoes) {
  Pair pair(options_for({"tcp"}));
  ASSERT_OK(run(*pair.a, pair.peer, {pair.piece(0, 0, 1000), pair.piece(5000, 9000, 500)}, Op::kRead));
  ASSERT_OK(run(*pair.a, pair.peer, {pair.piece(0, 0, 300)}, Op::kWrite));
  // The owner counts what it has sent, and we may have it by then.
  EXPECT_TRUE(eventually([&] { return pair.b->counters()["served_read_bytes"] == 1500; }));
  auto here = pair.a->counters(), there = pair.b->counters();
  EXPECT_EQ(here["read_bytes"], 1500u);
  EXPECT_EQ(here["written_bytes"], 300u);
  EXPECT_EQ(here["tcp_bytes"], 1800u);
  EXPECT_EQ(here["pieces_total"], 3u);
  EXPECT_EQ(here["transfers_total"], 2u);
  EXPECT_EQ(here["failed_pieces_total"], 0u);
  EXPECT_EQ(there["served_read_bytes"], 1500u);
  EXPECT_EQ(there["served_written_bytes"], 300u);
  EXPECT_EQ(pair.peer->stats().bytes_read, 1500u);
  EXPECT_EQ(pair.peer->stats().pieces, 3u);
}

TEST(Engine, LosesAPeerThatStoppedAnswering) {
  ChildProcess child(1u << 20, "foreign", "tcp");
  ASSERT_TRUE(child.running());
  EngineOptions options = options_for({"tcp"});
  options.idle_probe = milliseconds(200);
  auto engine = make_engine(options);
  Buffer local = register_buffer(*engine, 1u << 20, 1);
  auto peer = engine->connect(child.endpoint(), child.node_id(), kPatience);
  ASSERT_TRUE(peer.ok());
  const Piece piece{local.region.key.id, (*peer)->regions().at(0).key.id, 0, 0, 1u << 20};
  ASSERT_OK(run(*engine, *peer, {piece}, Op::kRead));
  child.signal(SIGSTOP);
  const auto begin = Clock::now();
  const Status status = run(*engine, *peer, {piece}, Op::kRead);
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.to_string();
  EXPECT_LT(Clock::now() - begin, milliseconds(10000));
  EXPECT_EQ((*peer)->status().code(), Code::kPeerLost);
  engine->close();
}

TEST(Engine, KeepsAnIdlePeer) {
  EngineOptions options;
  options.idle_probe = milliseconds(30);
  Pair pair(options);
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_OK(pair.peer->status());
  EXPECT_OK(run(*pair.a, pair.peer, {pair.piece(0, 0, 10)}, Op::kRead));
}

TEST(Engine, RestsWhenThereIsNothingToDo) {
  Pair pair;
  ASSERT_OK(run(*pair.a, pair.peer, {pair.piece(0, 0, 100000)}, Op::kRead));
  const auto before = cpu_time();
  std::this_thread::sleep_for(milliseconds(1000));
  EXPECT_LT(cpu_time() - before, std::chrono::microseconds(10000)) << "1 % of one core";
}

}  // namespace
}  // namespace kvferry::testing
