// Peers that are broken, hostile or half dead, spoken to over raw sockets.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <thread>

#include "base/deadline.h"
#include "base/random.h"
#include "base/socket.h"
#include "engine_fixture.h"
#include "process_state.h"
#include "raw_peer.h"

namespace kvferry::testing {
namespace {

// The engine under test still serves a real peer.
void expect_working(Engine& engine, const Buffer& far) {
  Buffer near;
  auto other = make_engine(options_for({"tcp"}));
  near = register_buffer(*other, 4096, 9);
  auto peer = connect(*other, engine);
  ASSERT_TRUE(peer);
  EXPECT_OK(run(*other, peer, {{near.region.key.id, far.region.key.id, 0, 0, 4096}}, Op::kRead));
  EXPECT_EQ(near.bytes[4095], far.bytes[4095]);
  other->close();
}

struct Target {
  explicit Target(EngineOptions options = {}) : engine(make_engine(std::move(options))) {
    buffer = register_buffer(*engine, 1u << 20, 2);
  }
  Buffer buffer;
  std::unique_ptr<Engine> engine;
};

TEST(Hardening, DropsGarbage) {
  Target target;
  std::vector<std::byte> noise(10u << 10);
  for (int i = 0; i < 50; ++i) {
    fill_random(noise);
    noise[0] |= std::byte{0x80};  // 0x16 would be the beginning of TLS
    if (i % 2 == 0) std::fill(noise.begin(), noise.end(), std::byte{0xff});
    UniqueFd fd = dial(*target.engine);
    (void)send_all(fd.get(), noise, patience());  // the engine may close before all is sent
    EXPECT_TRUE(is_closed(fd));
  }
  EXPECT_TRUE(eventually([&] { return dropped(*target.engine, "malformed_handshake") == 50; }));
  expect_working(*target.engine, target.buffer);
}

TEST(Hardening, CutsOffSilentAndSlowPeers) {
  Target target;
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(dial(*target.engine));
    const std::array<std::byte, 3> some{std::byte{'K'}, std::byte{'V'}, std::byte{'F'}};
    if (i % 2 == 0) ASSERT_OK(send_all(silent.back().get(), some, patience()));
  }
  expect_working(*target.engine, target.buffer);
  for (const UniqueFd& fd : silent) EXPECT_TRUE(is_closed(fd));
  EXPECT_TRUE(eventually([&] { return dropped(*target.engine, "handshake_timeout") == 100; }));
  EXPECT_TRUE(eventually([&] { return running_threads() < 10; })) << running_threads();
}

TEST(Hardening, SurvivesConnectionsCutAtAnyByte) {
  Target target;
  const std::size_t threads = running_threads();  // those of a sanitizer included
  wire::Hello hello;
  hello.self = NodeId::random();
  hello.endpoint = "127.0.0.1:1";
  const Bytes frame = encode_frame(FrameType::kHello, 0, hello.encode());
  const auto cycle = [&](std::size_t i) {
    UniqueFd fd = dial(*target.engine);
    if (i % 3 != 0) ASSERT_OK(send_all(fd.get(), std::span(frame).first(i % (frame.size() + 1)), patience()));
  };
  for (std::size_t i = 0; i < 50; ++i) cycle(i);
  const auto at_rest = [&] { return running_threads() <= threads; };
  ASSERT_TRUE(eventually(at_rest));
  const std::size_t descriptors = open_descriptors();
  for (std::size_t i = 0; i < 3000; ++i) cycle(i);
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= descriptors; })) << open_descriptors() - descriptors;
  EXPECT_TRUE(eventually(at_rest)) << running_threads();
  expect_working(*target.engine, target.buffer);
}

TEST(Hardening, TakesNoMemoryForBodiesBeforeTheHandshake) {
  Target target;
  for (const FrameType type : {FrameType::kMessage, FrameType::kRegions, FrameType::kWrite}) {
    UniqueFd fd = dial(*target.engine);
    FrameHeader header;
    header.type = type;
    header.body_bytes = static_cast<std::uint32_t>(max_body_bytes(type));
    ASSERT_OK(send_all(fd.get(), header.encode(), patience()));
    EXPECT_TRUE(is_closed(fd, milliseconds(2500))) << frame_type_name(type);  // it does not wait for the body
  }
  EXPECT_TRUE(eventually([&] { return dropped(*target.engine, "malformed_handshake") == 3; }));
}

// Loopback can be reached by every user of the host.
TEST(Hardening, WithoutASecretOtherUsersAreRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  Target open, guarded([] {
    EngineOptions options;
    options.cluster_secret = "sixteen bytes or more";
    return options;
  }());
  const auto code_for_another_user = [](const Engine& engine, const std::string& secret) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      if (::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(100);
      LocalNode node;
      node.id = NodeId::random();
      node.endpoint = "127.0.0.1:1";
      node.secret = secret;
      Channel channel(dial(engine));
      if (!greet(channel, node, engine.node_id(), wire::Purpose::kControl, patience()).ok()) ::_exit(101);
      const auto frame = channel.receive(patience());
      if (!frame.ok()) ::_exit(102);
      const bool refused = frame->header.type == FrameType::kError;
      ::_exit(refused ? static_cast<int>(status_of_error_frame(frame->body).code()) : 0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(code_for_another_user(*open.engine, ""), static_cast<int>(Code::kPermissionDenied));
  EXPECT_TRUE(eventually([&] { return dropped(*open.engine, "foreign_user") == 1; }));
  EXPECT_EQ(code_for_another_user(*guarded.engine, "sixteen bytes or more"), 0);
}

TEST(Hardening, CapsConnections) {
  EngineOptions options;
  options.max_connections = 4;
  Target target(options);
  std::optional<RawPeer> peer(*target.engine);
  std::vector<UniqueFd> held;
  for (std::uint32_t i = 0; i < 3; ++i) held.push_back(peer->open(wire::Purpose::kTcpData));
  auto caller = Engine::create(options);
  ASSERT_TRUE(caller.ok());
  Status refused;
  EXPECT_TRUE(eventually([&] {  // a connection counts a little later than its other end knows that it is made
    auto one_more = (*caller)->connect(target.engine->endpoint(), {}, kPatience);
    if (one_more.ok()) (*one_more)->close();
    refused = one_more.status();
    return !refused.ok();
  }));
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  for (const std::string& words :
       {target.engine->node_id().to_string() + " at " + target.engine->endpoint().to_string() + " serves 4 connections",
        "one more, of node " + (*caller)->node_id().to_string(), std::string("raise max_connections there")}) {
    EXPECT_NE(refused.message().find(words), std::string::npos) << refused.message();
  }
  EXPECT_TRUE(eventually([&] { return is_closed(peer->open(wire::Purpose::kTcpData), milliseconds(200)); }));
  EXPECT_GE(dropped(*target.engine, "too_many_connections"), 2u);
  peer.reset();
  ASSERT_TRUE(eventually([&] { return target.engine->peers().empty(); }));
  expect_working(*target.engine, target.buffer);
}

// Whoever only holds connections open loses the oldest of them to those that come after.
TEST(Hardening, CallersWithoutAHandshakeCannotKeepOthersOut) {
  EngineOptions options;
  options.max_connections = 4;
  Target target(options);
  constexpr std::size_t kRoom = 256, kMore = 10;
  std::vector<UniqueFd> silent;
  for (std::size_t i = 0; i < kRoom + kMore; ++i) silent.push_back(dial(*target.engine));
  expect_working(*target.engine, target.buffer);
  for (std::size_t i = 0; i < kMore; ++i) EXPECT_TRUE(is_closed(silent[i], milliseconds(2500))) << i;
  EXPECT_GE(dropped(*target.engine, "handshake_crowded"), kMore);
}

TEST(Hardening, DataConnectionsNeedAControlConnection) {
  Target target;
  LocalNode stranger;
  stranger.id = NodeId::random();
  Channel data(dial(*target.engine));
  ASSERT_TRUE(greet(data, stranger, {}, wire::Purpose::kTcpData, patience()).ok());
  EXPECT_TRUE(is_closed(data.take_fd()));
  EXPECT_TRUE(eventually([&] { return dropped(*target.engine, "no_control_connection") == 1; }));
  Channel attach(dial(*target.engine));
  ASSERT_TRUE(greet(attach, stranger, {}, wire::Purpose::kShmAttach, patience()).ok());
  EXPECT_TRUE(is_closed(attach.take_fd())) << "shared memory is not for the TCP listener";
}

TEST(Hardening, DataConnectionsEndWithTheControlConnection) {
  Target target;
  const std::size_t threads = running_threads();
  UniqueFd data;
  {
    RawPeer peer(*target.engine);
    data = peer.open(wire::Purpose::kTcpData);
  }
  EXPECT_TRUE(is_closed(data));
  EXPECT_TRUE(eventually([&] { return target.engine->peers().empty() && running_threads() <= threads; }));
}

TEST(Hardening, MalformedRequestsEndTheDataConnection) {
  Target target;
  RawPeer peer(*target.engine);
  const wire::PieceDescriptor good{peer.regions().at(0).key, 0, 4096};
  Bytes odd = wire::Read{{good}}.encode();
  odd.pop_back();
  Bytes spoiled = encode_frame(FrameType::kRead, request_id(1), wire::Read{{good}}.encode());
  spoiled.back() ^= std::byte{1};
  const std::vector<Bytes> frames{
      encode_frame(FrameType::kRead, request_id(1), odd),
      encode_frame(FrameType::kHello, 1, {}),
      encode_frame(FrameType::kPing, 1, {}),
      encode_frame(FrameType::kRead, request_id(1), wire::Read{{{good.region, 0, UINT64_MAX}}}.encode()),
      spoiled,
      Bytes(64, std::byte{0xee}),
  };
  for (const Bytes& frame : frames) {
    UniqueFd data = peer.open(wire::Purpose::kTcpData);
    ASSERT_OK(send_all(data.get(), frame, patience()));
    EXPECT_TRUE(is_closed(data));
  }
  EXPECT_TRUE(eventually([&] { return dropped(*target.engine, "malformed_request") == frames.size(); }));
  expect_working(*target.engine, target.buffer);
}

TEST(Hardening, RefusesWhatARequestMayNotReach) {
  Target target;
  const Buffer closed = register_buffer(*target.engine, 4096, 3, 0, "closed");
  RawPeer peer(*target.engine);
  UniqueFd data = peer.open(wire::Purpose::kTcpData);
  const RegionKey key = target.buffer.region.key;
  const std::uint64_t length = target.buffer.bytes.size();
  const wire::Read request{{
      {key, 0, 16},
      {key, length - 15, 16},
      {key, UINT64_MAX - 7, 16},
      {{key.id, key.generation + 1}, 0, 16},
      {{0, 0}, 0, 16},
      {{4000000000u, 1}, 0, 16},
      {closed.region.key, 0, 16},
      {key, 100, 16},
  }};
  ASSERT_OK(send_frame(data.get(), FrameType::kRead, request_id(5), request.encode(), patience()));
  const auto frame = recv_frame(data.get(), patience());
  ASSERT_TRUE(frame.ok());
  ASSERT_EQ(frame->header.type, FrameType::kReadData);
  const auto reply = wire::ReadData::decode(frame->body);
  ASSERT_TRUE(reply.ok());
  const std::vector<Code> expected{Code::kOk,       Code::kOutOfRange, Code::kOutOfRange,       Code::kNotFound,
                                   Code::kNotFound, Code::kNotFound,   Code::kPermissionDenied, Code::kOk};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(reply->results[i].code, expected[i]) << i;
  EXPECT_EQ(reply->payload_bytes, 32u);
  std::array<std::byte, 32> payload;
  ASSERT_OK(recv_exact(data.get(), payload, patience()));
  EXPECT_EQ(payload[0], pattern(2, 0));
  EXPECT_EQ(payload[16], pattern(2, 100));
}

TEST(Hardening, RefusedPiecesOfAWriteAreSkipped) {
  Target target;
  RawPeer peer(*target.engine);
  UniqueFd data = peer.open(wire::Purpose::kTcpData);
  const RegionKey key = target.buffer.region.key;
  const wire::Write request{{{{key.id + 1, 1}, 0, 300000}, {key, 10, 3}}, {}};
  Bytes bytes = encode_frame(FrameType::kWrite, request_id(6), request.encode());
  bytes.resize(bytes.size() + 300003, std::byte{0x5a});
  ASSERT_OK(send_all(data.get(), bytes, patience()));
  const auto frame = recv_frame(data.get(), patience());
  ASSERT_TRUE(frame.ok());
  const auto ack = wire::WriteAck::decode(frame->body);
  ASSERT_TRUE(ack.ok());
  EXPECT_EQ(ack->results, (std::vector<Code>{Code::kNotFound, Code::kOk}));
  EXPECT_EQ(target.buffer.bytes[12], std::byte{0x5a});
  EXPECT_EQ(target.buffer.bytes[13], pattern(2, 13));
}

TEST(Hardening, CutsOffAStalledRequest) {
  EngineOptions options;
  options.transfer_timeout = milliseconds(300);
  Target target(options);
  RawPeer peer(*target.engine);
  UniqueFd half_frame = peer.open(wire::Purpose::kTcpData), no_payload = peer.open(wire::Purpose::kTcpData),
           not_reading = peer.open(wire::Purpose::kTcpData);
  const RegionKey key = target.buffer.region.key;
  ASSERT_OK(send_all(half_frame.get(), Bytes(1, std::byte{'K'}), patience()));
  ASSERT_OK(send_frame(no_payload.get(), FrameType::kWrite, request_id(1), wire::Write{{{key, 0, 4096}}, {}}.encode(),
                       patience()));
  const Bytes read = encode_frame(FrameType::kRead, request_id(1), wire::Read{{{key, 0, 1u << 20}}}.encode());
  for (int i = 0; i < 64; ++i) ASSERT_OK(send_all(not_reading.get(), read, patience()));
  EXPECT_TRUE(eventually([&] { return dropped(*target.engine, "stalled") == 3; }))
      << dropped(*target.engine, "stalled");
  EXPECT_OK(target.engine->unregister(key, kPatience));  // no pin is left behind
}

TEST(Hardening, MalformedControlFramesLoseThePeer) {
  Target target;
  for (const Bytes& frame : {encode_frame(FrameType::kRead, request_id(1), {}),
                             encode_frame(FrameType::kRegions, 1, Bytes(3)), Bytes(24, std::byte{0x11})}) {
    RawPeer peer(*target.engine);
    ASSERT_OK(send_all(peer.control().get(), frame, patience()));
    EXPECT_TRUE(is_closed(peer.control()));
  }
  EXPECT_TRUE(eventually([&] { return dropped(*target.engine, "malformed_control_frame") == 3; }));
  EXPECT_TRUE(eventually([&] { return target.engine->peers().empty(); }));
  EXPECT_EQ(target.engine->counters()["lost_peers_total"], 3u);
}

TEST(Hardening, LosesAPeerThatFloodsOrDoesNotRead) {
  Target target;
  RawPeer flood(*target.engine);
  const Bytes message = encode_frame(FrameType::kMessage, 0, Bytes(1u << 20, std::byte{1}));
  Status sent;
  for (int i = 0; i < 70 && sent.ok(); ++i) sent = send_all(flood.control().get(), message, patience());
  EXPECT_TRUE(eventually([&] { return dropped(*target.engine, "inbox_full") == 1; }));
  for (;;) {  // behind its regions there is a last word
    const auto frame = recv_frame(flood.control().get(), patience());
    if (!frame.ok()) break;  // our own flood may have cut it off
    if (frame->header.type != FrameType::kGoodbye) continue;
    EXPECT_EQ(wire::Goodbye::decode(frame->body)->reason, "its application leaves too many messages unread");
    break;
  }
  const Bytes request = encode_frame(FrameType::kRegionsRequest, 1, {});
  RawPeer deaf(*target.engine);
  sent = {};
  for (int i = 0; i < 2000000 && sent.ok(); ++i) sent = send_all(deaf.control().get(), request, patience());
  EXPECT_FALSE(sent.ok()) << "answers to a peer that reads none are bounded";
  EXPECT_TRUE(eventually([&] { return target.engine->peers().empty(); }));
}

TEST(Hardening, AnswersThatAPeerDoesNotReadDoNotStopItsMessages) {
  EngineOptions options;
  options.metadata = std::string(64u << 10, 'm');
  Target target(options);
  RawPeer peer(*target.engine);
  const Bytes request = encode_frame(FrameType::kRegionsRequest, 1, {});
  for (int i = 0; i < 800; ++i) ASSERT_OK(send_all(peer.control().get(), request, patience()));  // 50 MB of answers
  ASSERT_OK(send_frame(peer.control().get(), FrameType::kMessage, 0, as_byte_view("still here"), patience()));
  const auto message = target.engine->next_message(kPatience);
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->body, "still here");
}

}  // namespace
}  // namespace kvferry::testing
