#include "wire/handshake.h"

#include <gtest/gtest.h>

namespace kvferry::wire {
namespace {

constexpr std::string_view kSecret = "sixteen bytes or more";

class Handshake : public testing::Test {
 protected:
  Handshake() {
    hello.self = NodeId::random();
    hello.nonce.fill(1);
    ack.self = NodeId::random();
    ack.nonce.fill(2);
  }

  // Both sides as they should be, with this secret on each.
  void exchange(std::string_view secret) {
    hello.has_secret = ack.has_secret = !secret.empty();
    hello_body = hello.encode();
    ack.proof = handshake_proof({secret, {}}, Role::kAcceptor, hello_body, ack.encode());
    ack_body = ack.encode();
    auth.proof = handshake_proof({secret, {}}, Role::kInitiator, hello_body, ack_body);
  }
  Status at_acceptor(std::string_view secret) {
    return check_hello(*Hello::decode(hello_body), ack.self, "10.0.0.1:7000", !secret.empty());
  }
  Status at_initiator(std::string_view secret) {
    return check_hello_ack(*HelloAck::decode(ack_body), ack_body, hello, hello_body, {secret, {}});
  }
  Status at_end(std::string_view secret) { return check_auth(auth, hello_body, ack_body, {secret, {}}); }

  Hello hello;
  HelloAck ack;
  Auth auth;
  Bytes hello_body, ack_body;
};

TEST_F(Handshake, SucceedsWithAndWithoutSecret) {
  for (const std::string_view secret : {std::string_view(), kSecret}) {
    exchange(secret);
    EXPECT_TRUE(at_acceptor(secret).ok());
    EXPECT_TRUE(at_initiator(secret).ok());
    EXPECT_TRUE(at_end(secret).ok());
  }
}

TEST_F(Handshake, ProofsAreForOneTlsSessionOnly) {
  exchange(kSecret);
  const Bytes binding(32, std::byte{7});
  const Digest bound = handshake_proof({kSecret, binding}, Role::kInitiator, hello_body, ack_body);
  EXPECT_NE(bound, auth.proof);
  EXPECT_EQ(check_auth({bound}, hello_body, ack_body, {kSecret, {}}).code(), Code::kUnauthenticated);
  EXPECT_TRUE(check_auth({bound}, hello_body, ack_body, {kSecret, binding}).ok());
}

TEST_F(Handshake, OtherSecretIsRefusedByBothSides) {
  exchange(kSecret);
  const Status refused = at_initiator("another secret of theirs");
  EXPECT_EQ(refused.code(), Code::kUnauthenticated);
  EXPECT_EQ(refused.message(), at_end("another secret of theirs").message());  // right from both views
  EXPECT_EQ(at_end("another secret of theirs").code(), Code::kUnauthenticated);
}

TEST_F(Handshake, SecretOnOneSideOnlyIsRefusedWithAdvice) {
  exchange(kSecret);
  EXPECT_NE(at_acceptor("").message().find("set cluster_secret"), std::string::npos);
  EXPECT_EQ(at_initiator("").code(), Code::kUnauthenticated);
  EXPECT_EQ(at_initiator("").message().find("node " + ack.self.to_string() + " has a cluster secret and"), 0u);
  exchange("");
  EXPECT_EQ(at_acceptor(kSecret).code(), Code::kUnauthenticated);
  EXPECT_EQ(at_acceptor(kSecret).message().find("node " + ack.self.to_string() + " has a cluster secret and"), 0u);
  EXPECT_EQ(at_initiator(kSecret).code(), Code::kUnauthenticated);
}

TEST_F(Handshake, ProofOfOneRoleDoesNotServeTheOther) {
  exchange(kSecret);
  auth.proof = ack.proof;  // reflected
  EXPECT_EQ(at_end(kSecret).code(), Code::kUnauthenticated);
}

TEST_F(Handshake, ProofOfAnotherConversationIsRefused) {
  exchange(kSecret);
  const Digest old = auth.proof;
  hello.nonce.fill(3);
  exchange(kSecret);
  auth.proof = old;
  EXPECT_EQ(at_end(kSecret).code(), Code::kUnauthenticated);
}

TEST_F(Handshake, EveryByteIsCovered) {
  exchange(kSecret);
  const Digest proof = handshake_proof({kSecret, {}}, Role::kInitiator, hello_body, ack_body);
  for (std::size_t i = 0; i < hello_body.size(); ++i) {
    Bytes changed = hello_body;
    changed[i] ^= std::byte{1};
    EXPECT_NE(handshake_proof({kSecret, {}}, Role::kInitiator, changed, ack_body), proof) << "HELLO byte " << i;
  }
  for (std::size_t i = 0; i + 32 < ack_body.size(); ++i) {
    Bytes changed = ack_body;
    changed[i] ^= std::byte{1};
    EXPECT_NE(handshake_proof({kSecret, {}}, Role::kInitiator, hello_body, changed), proof) << "HELLO_ACK byte " << i;
  }
}

TEST_F(Handshake, WrongNodeIsNamedByBothSides) {
  hello.expected = NodeId::random();
  exchange("");
  const Status acceptor = at_acceptor("");
  EXPECT_EQ(acceptor.code(), Code::kIdentityMismatch);
  EXPECT_EQ(acceptor.message(), "address 10.0.0.1:7000 is held by node " + ack.self.to_string() + ", expected " +
                                    hello.expected.to_string());
  EXPECT_EQ(at_initiator("").code(), Code::kIdentityMismatch);
  hello.expected = ack.self;
  exchange("");
  EXPECT_TRUE(at_acceptor("").ok());
}

TEST_F(Handshake, ConnectingToOneselfIsRefused) {
  hello.self = ack.self;
  exchange("");
  EXPECT_EQ(at_acceptor("").code(), Code::kInvalidArgument);
  EXPECT_EQ(at_initiator("").code(), Code::kInvalidArgument);
}

TEST_F(Handshake, VersionsMustMeet) {
  hello.min_version = 2;
  hello.max_version = 3;
  exchange("");
  EXPECT_EQ(at_acceptor("").code(), Code::kUnsupported);
  EXPECT_EQ(at_initiator("").code(), Code::kProtocolError) << "a version that was not offered";
  hello.min_version = 1;
  exchange("");
  EXPECT_TRUE(at_acceptor("").ok());
}

}  // namespace
}  // namespace kvferry::wire
