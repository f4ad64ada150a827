// The proof of the shared secret, and the checks that both ends make. Pure: no sockets, no clock.
#pragma once

#include <string_view>

#include "base/bytes.h"
#include "wire/messages.h"

namespace kvferry::wire {

enum class Role : std::uint8_t { kInitiator = 1, kAcceptor = 2 };

// What both ends must know, or know alike.
struct Shared {
  std::string_view secret;
  ByteView binding;  // of the TLS session (TlsSession::binding()), empty without TLS
};

// HMAC-SHA-256(secret, "kvferry handshake 1" || role || u8 length of binding || binding || u32 length of hello || hello
// || ack without its last 32 bytes). Covers both nonces, both node ids, purpose, versions and the TLS session. Zeros if
// the secret is empty.
Digest handshake_proof(const Shared& shared, Role role, ByteView hello_body, ByteView ack_body);

// What the acceptor finds wrong with a HELLO: kUnsupported (no common version), kIdentityMismatch (the message names
// both nodes and `self_endpoint`), kUnauthenticated (only one side has a secret), kInvalidArgument (its own node id).
Status check_hello(const Hello& hello, const NodeId& self, std::string_view self_endpoint, bool has_secret);

// What the initiator finds wrong with the answer: as above, plus a wrong proof.
Status check_hello_ack(const HelloAck& ack, ByteView ack_body, const Hello& hello, ByteView hello_body,
                       const Shared& shared);

// Acceptor, about AUTH.
Status check_auth(const Auth& auth, ByteView hello_body, ByteView ack_body, const Shared& shared);

}  // namespace kvferry::wire
