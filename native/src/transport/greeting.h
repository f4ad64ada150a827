// The handshake on a fresh connection, both ends: HELLO, HELLO_ACK, AUTH, within one deadline. Stateless; thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/host_id.h"
#include "base/socket.h"
#include "base/tls.h"
#include "kvferry/node_id.h"
#include "kvferry/status.h"
#include "transport/transport.h"
#include "wire/channel.h"
#include "wire/messages.h"

namespace kvferry {

struct LocalRail {               // an address of ours that carries data
  Endpoint endpoint;             // we listen there
  std::uint32_t speed_mbit = 0;  // of its interface; 0: unknown
  unsigned prefix_length = 0;    // of its network
  int numa_node = -1;            // of its interface; -1: unknown
  std::string nic;               // the interface's name
};

struct LocalNode {  // what we say of ourselves; fixed once the engine listens
  NodeId id;
  HostId host;
  std::string endpoint;
  std::string shm_name;
  std::string secret;
  std::vector<LocalRail> rails;           // none: data goes wherever the kernel routes it
  std::shared_ptr<const TlsContext> tls;  // none: TCP connections are plain
};

// True if no byte of this connection leaves the host: loopback, unix, or from an address of ours to the same.
bool stays_on_host(int fd);

// Of the rails that a peer told over this connection, those that we may connect to.
std::vector<PeerRail> usable_rails(const std::vector<wire::RailAddress>& told, int fd);

// The unix listener of a node: the same for everybody, so that no peer sends us anywhere else.
std::string shm_name_of(const NodeId& id);

// Both ends start TLS first if the node has it and the connection is TCP; without it they leave the
// channel with tagged frames if there is a secret.
//
// Initiator. `expected` may be nil. What the acceptor reports comes back as its own code, e.g. kIdentityMismatch.
Result<wire::HelloAck> greet(Channel& channel, const LocalNode& local, const NodeId& expected, wire::Purpose purpose,
                             const Wait& wait);

// Acceptor. On a refusal the peer was told why.
Result<wire::Hello> receive_greeting(Channel& channel, const LocalNode& local, const Wait& wait);

// Without a secret only processes of our own user are trusted. OK if the peer of a connection within this host, by unix
// socket or loopback, is one; else kPermissionDenied.
Status check_same_user(int fd);

// Best effort: an ERROR frame that ends the connection.
void send_refusal(Channel& channel, const Status& why);

// The Status that an ERROR frame carries; kProtocolError if it cannot be read.
Status status_of_error_frame(ByteView body);

}  // namespace kvferry
