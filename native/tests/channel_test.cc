// Tagged frames: what an attacker between two nodes may try with them, and what becomes of it.
#include "wire/channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <optional>

#include "base/deadline.h"

namespace kvferry {
namespace {

using wire::FrameTagger;
using wire::Role;

constexpr std::string_view kSecret = "sixteen bytes or more";
constexpr std::size_t kPingBytes = kFrameHeaderBytes + wire::kFrameTagBytes;

Wait soon() { return Wait{deadline_in(milliseconds(20000))}; }

wire::Hello some_hello() {
  wire::Hello hello;
  hello.self.bytes.fill(1);
  hello.nonce.fill(2);
  return hello;
}

wire::HelloAck some_ack() {
  wire::HelloAck ack;
  ack.self.bytes.fill(3);
  ack.nonce.fill(4);
  return ack;
}

struct Sockets {
  Sockets() {
    std::array<int, 2> fds{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()), 0);
    a = UniqueFd(fds[0]);
    b = UniqueFd(fds[1]);
  }
  UniqueFd a, b;
};

// An initiator, an acceptor, and everything that they say to each other passing through the test's hands.
class Tagged : public testing::Test {
 protected:
  Tagged() {
    for (const Role self : {Role::kInitiator, Role::kAcceptor}) {
      const Role other = self == Role::kInitiator ? Role::kAcceptor : Role::kInitiator;
      const auto tagger = [](Role sender) {
        return FrameTagger(sender, wire::frame_key(kSecret, sender, some_hello(), some_ack()));
      };
      (self == Role::kInitiator ? initiator : acceptor).authenticate(tagger(self), tagger(other));
    }
  }

  // The bytes of what the initiator sends.
  Bytes sent(FrameType type, std::uint64_t request, std::string_view body) {
    EXPECT_TRUE(initiator.send(type, request, as_byte_view(body), soon()).ok());
    Bytes out(kFrameHeaderBytes + body.size() + wire::kFrameTagBytes);
    EXPECT_TRUE(recv_exact(left.b.get(), out, soon()).ok());
    return out;
  }
  void deliver(ByteView bytes) { EXPECT_TRUE(send_all(right.a.get(), bytes, soon()).ok()); }
  Code received() { return acceptor.receive(soon()).status().code(); }

  Sockets left, right;
  Channel initiator{std::move(left.a)};
  Channel acceptor{std::move(right.b)};
};

TEST_F(Tagged, FramesArriveInOrderWithAndWithoutBodyAndEncodedAhead) {
  deliver(sent(FrameType::kPing, 1, ""));
  deliver(sent(FrameType::kMessage, 2, "hello"));
  deliver(initiator.finish(begin_frame({}), FrameType::kPong, 3));
  for (std::uint64_t request = 1; request <= 3; ++request) {
    const auto frame = acceptor.receive(soon());
    ASSERT_TRUE(frame.ok()) << frame.status().to_string();
    EXPECT_EQ(frame->header.request_id, request);
    EXPECT_EQ(as_text(frame->body), request == 2 ? "hello" : "");
  }
}

TEST_F(Tagged, EveryFlippedBitOfAFrameIsNoticed) {
  const Bytes frame = sent(FrameType::kMessage, 7, "some text");
  for (std::size_t bit = 0; bit < frame.size() * 8; ++bit) {
    if (bit / 8 >= 8 && bit / 8 < 12) continue;  // the length: more or less is read then, see below
    Sockets pair;
    Channel receiver(std::move(pair.b));
    const auto tagger = [](Role sender) {
      return FrameTagger(sender, wire::frame_key(kSecret, sender, some_hello(), some_ack()));
    };
    receiver.authenticate(tagger(Role::kAcceptor), tagger(Role::kInitiator));
    Bytes spoiled = frame;
    spoiled[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    ASSERT_TRUE(send_all(pair.a.get(), spoiled, soon()).ok());
    const Code code = receiver.receive(soon()).status().code();
    const bool not_a_frame = code == Code::kProtocolError && bit / 8 < 8;
    EXPECT_TRUE(code == Code::kUnauthenticated || not_a_frame) << bit << ": " << code_name(code);
  }
}

TEST_F(Tagged, ARepeatedFrameIsRefused) {
  const Bytes frame = sent(FrameType::kPing, 1, "");
  deliver(frame);
  deliver(frame);
  EXPECT_EQ(received(), Code::kOk);
  EXPECT_EQ(received(), Code::kUnauthenticated);
}

TEST_F(Tagged, FramesInAnotherOrderAreRefused) {
  const Bytes first = sent(FrameType::kPing, 1, "");
  deliver(sent(FrameType::kPing, 2, ""));
  deliver(first);
  EXPECT_EQ(received(), Code::kUnauthenticated);
}

TEST_F(Tagged, AMissingFrameIsNoticedByTheNext) {
  (void)sent(FrameType::kMessage, 0, "lost on the way");
  deliver(sent(FrameType::kPing, 2, ""));
  EXPECT_EQ(received(), Code::kUnauthenticated);
}

TEST_F(Tagged, AReflectedFrameIsRefused) {
  ASSERT_TRUE(acceptor.send(FrameType::kPing, 1, {}, soon()).ok());
  Bytes own(kPingBytes);
  ASSERT_TRUE(recv_exact(right.a.get(), own, soon()).ok());
  deliver(own);
  EXPECT_EQ(received(), Code::kUnauthenticated);
}

TEST_F(Tagged, PartsOfTwoFramesDoNotMakeAThird) {
  const Bytes one = sent(FrameType::kMessage, 0, "pay alice");
  const Bytes two = sent(FrameType::kMessage, 0, "pay mally");
  Bytes spliced(one.begin(), one.begin() + kFrameHeaderBytes);
  spliced.insert(spliced.end(), two.begin() + kFrameHeaderBytes, two.end());
  deliver(spliced);
  EXPECT_EQ(received(), Code::kUnauthenticated);
}

TEST_F(Tagged, AnUntaggedFrameIsNotTaken) {
  deliver(encode_frame(FrameType::kError, 0, wire::Error{Code::kInternal, "go away"}.encode()));
  deliver(Bytes(wire::kFrameTagBytes));
  EXPECT_EQ(received(), Code::kUnauthenticated);
}

TEST_F(Tagged, ACutFrameIsTheLossOfThePeer) {
  const Bytes frame = sent(FrameType::kMessage, 0, "hello");
  deliver(ByteView(frame).first(frame.size() - 1));
  right.a.reset();
  EXPECT_EQ(received(), Code::kPeerLost);
}

TEST_F(Tagged, BodiesAboveTheCapAreRefusedBeforeTheyAreRead) {
  deliver(sent(FrameType::kMessage, 0, "hello"));
  EXPECT_EQ(acceptor.receive(soon(), 4).status().code(), Code::kProtocolError);
}

TEST(FrameKey, DependsOnAllThatItMust) {
  const wire::Hello hello = some_hello();
  const wire::HelloAck ack = some_ack();
  const Digest key = wire::frame_key(kSecret, Role::kInitiator, hello, ack);
  EXPECT_EQ(key, wire::frame_key(kSecret, Role::kInitiator, hello, ack));
  EXPECT_NE(key, wire::frame_key(kSecret, Role::kAcceptor, hello, ack));
  EXPECT_NE(key, wire::frame_key("another secret of theirs", Role::kInitiator, hello, ack));
  const std::vector<std::function<void(wire::Hello&, wire::HelloAck&)>> changes{
      [](wire::Hello& h, wire::HelloAck&) { h.nonce[31] ^= 1; },
      [](wire::Hello& h, wire::HelloAck&) { h.self.bytes[0] ^= 1; },
      [](wire::Hello& h, wire::HelloAck&) { h.purpose = wire::Purpose::kTcpData; },
      [](wire::Hello&, wire::HelloAck& a) { a.nonce[0] ^= 1; },
      [](wire::Hello&, wire::HelloAck& a) { a.self.bytes[15] ^= 1; },
  };
  for (const auto& change : changes) {
    wire::Hello other = hello;
    wire::HelloAck answer = ack;
    change(other, answer);
    EXPECT_NE(key, wire::frame_key(kSecret, Role::kInitiator, other, answer));
  }
}

}  // namespace
}  // namespace kvferry
