#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "base/deadline.h"
#include "base/socket.h"
#include "engine_fixture.h"
#include "process_state.h"
#include "proxy.h"
#include "transport/fault/fault_plan.h"

namespace kvferry::testing {
namespace {

constexpr std::uint64_t kLength = 8u << 20;

struct Faulty {
  explicit Faulty(const std::string& plan, std::vector<std::string> transports, bool allow_fallback = true) {
    EngineOptions options = options_for(transports);
    b = make_engine(options);
    options.fault_plan = plan;
    options.allow_fallback = allow_fallback;
    a = make_engine(options);
    near = register_buffer(*a, kLength, 1);
    far = register_buffer(*b, kLength, 2);
    peer = connect(*a, *b);
  }
  std::vector<Piece> pieces() const {
    std::vector<Piece> out;
    for (std::uint64_t i = 0; i < kLength / 65536; ++i) {
      out.push_back({near.region.key.id, far.region.key.id, i * 65536, kLength - (i + 1) * 65536, 65536});
    }
    return out;
  }
  std::shared_ptr<Transfer> read(milliseconds timeout = milliseconds(10000)) {
    SubmitOptions options;
    options.timeout = timeout;
    auto transfer = start(*a, peer, pieces(), Op::kRead, options);
    EXPECT_TRUE(transfer.ok()) << transfer.status().to_string();
    EXPECT_TRUE((*transfer)->wait(kPatience));
    return *transfer;
  }
  std::size_t wrong_bytes() const {
    std::size_t wrong = 0;
    for (std::uint64_t i = 0; i < kLength; i += 13) {
      const std::uint64_t source = kLength - (i / 65536 + 1) * 65536 + i % 65536;
      wrong += near.bytes[i] != pattern(2, source);
    }
    return wrong;
  }
  Buffer near, far;
  std::unique_ptr<Engine> a, b;
  std::shared_ptr<Peer> peer;
};

TEST(FaultPlan, Parses) {
  const auto rules = parse_fault_plan("tcp:cut@3x1;shm:hang;*:delay=20;tcp:corrupt@2");
  ASSERT_TRUE(rules.ok());
  ASSERT_EQ(rules->size(), 4u);
  EXPECT_EQ((*rules)[0], (FaultRule{"tcp", FaultAction::kCut, milliseconds(0), 3, 1}));
  EXPECT_EQ((*rules)[2], (FaultRule{"*", FaultAction::kDelay, milliseconds(20), 1, UINT64_MAX}));
  EXPECT_TRUE((*rules)[0].applies("tcp", 3));
  EXPECT_FALSE((*rules)[0].applies("tcp", 4));
  EXPECT_FALSE((*rules)[0].applies("shm", 3));
  for (const char* bad : {"cut", ":cut", "tcp:", "tcp:cut@", "tcp:cut@0", "tcp:cutx-1", "tcp:delay=ms", "tcp:burn"}) {
    EXPECT_FALSE(parse_fault_plan(bad).ok()) << bad;
  }
  EXPECT_TRUE(parse_fault_plan("").ok());
}

TEST(Fault, ABrokenRailIsReplacedAndItsSliceMovedAgain) {
  for (const char* plan : {"*:cut@1x1", "*:short@1x1", "*:short@2x2"}) {
    for (const char* transport : {"tcp", "shm"}) {
      Faulty pair(plan, {transport}, false);
      const auto transfer = pair.read();
      EXPECT_OK(transfer->status());
      EXPECT_EQ(pair.wrong_bytes(), 0u);
      EXPECT_EQ(transfer->transport(), transport);
      EXPECT_GE(pair.peer->stats().retried_slices, 1u) << plan;
      EXPECT_GE(pair.a->counters()["rail_failures_total"], 1u);
      EXPECT_EQ(pair.a->counters()["rail_switches_total"], 0u);
    }
  }
}

TEST(Fault, FallsBackToTheNextTransportAndSaysSo) {
  Faulty pair("shm:cut", {"shm", "tcp"});
  const auto transfer = pair.read();
  EXPECT_OK(transfer->status());
  EXPECT_EQ(pair.wrong_bytes(), 0u);
  EXPECT_EQ(transfer->transport(), "shm+tcp");
  EXPECT_EQ(pair.peer->stats().transport, "tcp");
  EXPECT_NE(pair.peer->transport_note().find("shm not possible: fault: the rail broke"), std::string::npos)
      << pair.peer->transport_note();
  EXPECT_GE(pair.a->counters()["rail_switches_total"], 1u);  // once for each slice that was under way
}

TEST(Fault, WithoutLeaveToFallBackItFailsWithTheReason) {
  Faulty pair("shm:cut", {"shm", "tcp"}, false);
  const auto transfer = pair.read();
  EXPECT_EQ(transfer->status().code(), Code::kPeerLost) << transfer->status().to_string();
  for (const Status& status : transfer->piece_status()) EXPECT_FALSE(status.ok());
  EXPECT_EQ(pair.a->counters()["tcp_bytes"], 0u);
  EXPECT_EQ(pair.a->counters()["failed_pieces_total"], kLength / 65536);
  EXPECT_EQ(pair.a->counters()["failed_pieces_peer_lost_total"], kLength / 65536);
}

TEST(Fault, ATransportThatWasRefusedComesBack) {
  Faulty pair("shm:refuse@1x1", {"shm", "tcp"});
  EXPECT_EQ(pair.read()->transport(), "tcp");
  EXPECT_NE(pair.peer->transport_note().find("refused"), std::string::npos);
  ASSERT_TRUE(eventually([&] { return pair.read()->transport() == "shm"; }));
  EXPECT_EQ(pair.wrong_bytes(), 0u);
  EXPECT_EQ(pair.peer->stats().transport, "shm");
}

TEST(Fault, NoTransportAtAllFailsSoon) {
  Faulty pair("*:refuse", {"shm", "tcp"});
  const auto begin = Clock::now();
  const auto transfer = pair.read();
  EXPECT_EQ(transfer->status().code(), Code::kUnavailable) << transfer->status().to_string();
  EXPECT_LT(Clock::now() - begin, milliseconds(10000));
}

TEST(Fault, AHungRailLeavesTimeForAnother) {
  Faulty pair("tcp:hang@1x1", {"tcp"});
  const auto transfer = pair.read(milliseconds(9000));
  EXPECT_OK(transfer->status());
  EXPECT_EQ(pair.wrong_bytes(), 0u);
}

TEST(Fault, HangsEndAtTheDeadline) {
  Faulty pair("*:hang", {"shm", "tcp"});
  const auto transfer = pair.read(milliseconds(400));
  EXPECT_EQ(transfer->status().code(), Code::kDeadlineExceeded) << transfer->status().to_string();
  EXPECT_LT(transfer->seconds(), 10.0);
}

// One lane, which hangs and comes to life long after its transfer was given up.
struct LateLane {
  LateLane(const char* transport, const char* security, Op what) : op(what) {
    EngineOptions options = secured(options_for({transport}), security);
    options.tcp_streams = options.shm_lanes = 1;
    b = make_engine(options);
    options.fault_plan = "*:late=8000@1x1";
    a = make_engine(options);
    near = register_buffer(*a, 65536, 1);
    far = register_buffer(*b, 65536, 2);
    other = register_buffer(*a, 65536, 3);
    peer = connect(*a, *b);
    SubmitOptions hurried;
    hurried.timeout = milliseconds(200);
    transfer = *start(*a, peer, {{near.region.key.id, far.region.key.id, 0, 0, 65536}}, op, hurried);
  }
  // Moves something else over the same lane, which it can only when it is back.
  Status await_return() {
    const auto next = start(*a, peer, {{other.region.key.id, far.region.key.id, 0, 0, 65536}}, Op::kRead, {});
    if (!next.ok()) return next.status();
    return (*next)->wait(kPatience) ? (*next)->status() : Status(Code::kDeadlineExceeded, "it is not back");
  }
  Op op;
  Buffer near, far, other;
  std::unique_ptr<Engine> a, b;
  std::shared_ptr<Peer> peer;
  std::shared_ptr<Transfer> transfer;
};

TEST(Fault, WhatComesToLifeLateFindsTheMemoryShut) {
  std::vector<std::unique_ptr<LateLane>> lanes;
  for (const Op op : {Op::kRead, Op::kWrite}) {
    lanes.push_back(std::make_unique<LateLane>("shm", "", op));
    lanes.push_back(std::make_unique<LateLane>("tcp", "", op));
    lanes.push_back(std::make_unique<LateLane>("tcp", "tls", op));
  }
  for (const auto& lane : lanes) {
    ASSERT_TRUE(lane->transfer->wait(kPatience));
    const Status status = lane->transfer->status();
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.to_string();
    EXPECT_EQ(lane->op == Op::kWrite, status.message().find("may still land") != std::string::npos);
    EXPECT_OK(lane->a->unregister(lane->near.region.key, milliseconds(0)));
    std::ranges::fill(lane->near.bytes, std::byte{0xee});
  }
  for (const auto& lane : lanes) {
    EXPECT_OK(lane->await_return());
    EXPECT_TRUE(std::ranges::all_of(lane->near.bytes, [](std::byte byte) { return byte == std::byte{0xee}; }));
    for (std::uint64_t i = 0; i < lane->far.bytes.size(); i += 13) ASSERT_EQ(lane->far.bytes[i], pattern(2, i));
  }
}

// Whether the keeper or a broken rail comes first must not show.
TEST(Fault, ARailThatBreaksWhenTimeIsUpIsADeadline) {
  Faulty pair("tcp:cut@2", {"tcp"});
  const auto plan = pair.a->prepare(pair.peer, std::vector<Piece>{pair.pieces().front()}, Op::kRead);
  ASSERT_TRUE(plan.ok());
  ASSERT_OK((*pair.a->execute(*plan, {}))->status());
  SubmitOptions hurried;
  hurried.timeout = milliseconds(0);
  for (int i = 0; i < 300; ++i) {
    const auto transfer = pair.a->execute(*plan, hurried);
    ASSERT_TRUE(transfer.ok());
    ASSERT_TRUE((*transfer)->wait(kPatience));
    const Status status = (*transfer)->status();
    ASSERT_EQ(status.code(), Code::kDeadlineExceeded) << status.to_string();
  }
}

TEST(Fault, WrongBytesAreNotNoticedWithoutAChecksum) {
  Faulty pair("tcp:corrupt@1x1", {"tcp"});
  EXPECT_OK(pair.read()->status());
  EXPECT_EQ(pair.a->counters()["rail_failures_total"], 0u);
}

TEST(Fault, AsksForWhatThePeerDoesNotOffer) {
  Buffer near, far;
  auto b = make_engine(options_for({"tcp"}));
  EngineOptions options = options_for({"shm", "tcp"});
  for (const bool fallback : {false, true}) {
    options.allow_fallback = fallback;
    auto a = make_engine(options);
    near = register_buffer(*a, 4096, 1);
    far = register_buffer(*b, 4096, 2);
    auto peer = connect(*a, *b);
    const Status status = run(*a, peer, {{near.region.key.id, far.region.key.id, 0, 0, 4096}}, Op::kRead);
    EXPECT_EQ(status.code(), fallback ? Code::kOk : Code::kUnsupported) << status.to_string();
    EXPECT_NE(peer->transport_note().find("does not offer shared memory"), std::string::npos);
    a->close();
  }
}

TEST(Fault, ChecksumsFindBytesThatTheNetworkSpoiled) {
  EngineOptions options = options_for({"tcp"});
  options.tcp_streams = 1;
  options.checksum = true;
  Buffer near, far;
  auto b = make_engine(options);
  far = register_buffer(*b, kLength, 2);
  Proxy proxy(b->endpoint(), 2, 3u << 20);
  auto a = make_engine(options);
  near = register_buffer(*a, kLength, 1);
  auto peer = a->connect(proxy.endpoint(), b->node_id(), kPatience);
  ASSERT_TRUE(peer.ok()) << peer.status().to_string();
  ASSERT_OK(run(*a, *peer, {{near.region.key.id, far.region.key.id, 0, 0, kLength}}, Op::kRead));
  EXPECT_TRUE(std::equal(near.bytes.begin(), near.bytes.end(), far.bytes.begin()));
  EXPECT_EQ(a->counters()["rail_failures_total"], 1u);
  EXPECT_EQ(a->counters()["retried_slices_total"], 1u);
  EXPECT_NE((*peer)->status().code(), Code::kPeerLost);
  a->close();
  b->close();
}

}  // namespace
}  // namespace kvferry::testing
