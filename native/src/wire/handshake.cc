#include "wire/handshake.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/sha256.h"
#include "wire/frame.h"

namespace kvferry::wire {
namespace {

constexpr std::string_view kLabel = "kvferry handshake 1";
constexpr std::size_t kProofBytes = sizeof(Digest);

// What is said is read on either side, so that it names both as neither of them would.
Status check_both_have_secret(bool acceptor, bool initiator, const NodeId& node) {
  if (acceptor == initiator) return {};
  const std::string name = "node " + node.to_string();
  return {Code::kUnauthenticated,
          acceptor ? name +
                         " has a cluster secret and the program that connects to it has none: set cluster_secret "
                         "(or the file of it) of that program"
                   : name +
                         " has no cluster secret and the program that connects to it has one: set cluster_secret "
                         "(or the file of it) of the node"};
}

Status check_proof(const Digest& given, const Shared& shared, Role role, ByteView hello_body, ByteView ack_body) {
  if (equal_constant_time(given, handshake_proof(shared, role, hello_body, ack_body))) return {};
  return {Code::kUnauthenticated,
          "the two sides have different cluster secrets: all nodes and programs of a cluster need the same "
          "cluster_secret (or file of it)"};
}

}  // namespace

Digest handshake_proof(const Shared& shared, Role role, ByteView hello_body, ByteView ack_body) {
  if (shared.secret.empty()) return {};
  ByteWriter head;
  head.raw(as_byte_view(kLabel));
  head.u8(static_cast<std::uint8_t>(role));
  head.u8(static_cast<std::uint8_t>(shared.binding.size()));
  head.raw(shared.binding);
  head.u32(static_cast<std::uint32_t>(hello_body.size()));
  const Bytes prefix = head.take();
  const ByteView unproved = ack_body.first(ack_body.size() - std::min(ack_body.size(), kProofBytes));
  const std::array<ByteView, 3> parts{prefix, hello_body, unproved};
  return hmac_sha256(as_byte_view(shared.secret), parts);
}

Status check_hello(const Hello& hello, const NodeId& self, std::string_view self_endpoint, bool has_secret) {
  if (hello.min_version > kWireVersion || hello.max_version < kWireVersion) {
    return {Code::kUnsupported, "node " + self.to_string() + " speaks wire version " + std::to_string(kWireVersion) +
                                    ", the caller " + std::to_string(hello.min_version) + " to " +
                                    std::to_string(hello.max_version) + "; upgrade the older side"};
  }
  if (!hello.expected.is_nil() && hello.expected != self) {
    return {Code::kIdentityMismatch, "address " + std::string(self_endpoint) + " is held by node " + self.to_string() +
                                         ", expected " + hello.expected.to_string()};
  }
  if (hello.self == self)
    return {Code::kInvalidArgument, "node " + self.to_string() + " was told to connect to itself"};
  return check_both_have_secret(has_secret, hello.has_secret, self);
}

Status check_hello_ack(const HelloAck& ack, ByteView ack_body, const Hello& hello, ByteView hello_body,
                       const Shared& shared) {
  if (ack.version < hello.min_version || ack.version > hello.max_version) {
    return {Code::kProtocolError,
            "the peer chose wire version " + std::to_string(ack.version) + ", which was not offered"};
  }
  if (!hello.expected.is_nil() && hello.expected != ack.self) {
    return {Code::kIdentityMismatch,
            "address is held by node " + ack.self.to_string() + ", expected " + hello.expected.to_string()};
  }
  if (ack.self == hello.self) return {Code::kInvalidArgument, "the answer bears our own node id"};
  KVF_RETURN_IF_ERROR(check_both_have_secret(ack.has_secret, !shared.secret.empty(), ack.self));
  return check_proof(ack.proof, shared, Role::kAcceptor, hello_body, ack_body);
}

Status check_auth(const Auth& auth, ByteView hello_body, ByteView ack_body, const Shared& shared) {
  return check_proof(auth.proof, shared, Role::kInitiator, hello_body, ack_body);
}

}  // namespace kvferry::wire
