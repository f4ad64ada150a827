#include "engine/inbound.h"

#include <unistd.h>

#include <string_view>

#include "base/deadline.h"
#include "base/limits.h"
#include "base/log.h"
#include "engine/core.h"
#include "engine/peer.h"
#include "transport/tcp/tcp_server.h"
#include "transport/tcp/tcp_transport.h"

namespace kvferry {
namespace {

// "" if the peer simply left: that is not worth a reason.
std::string_view handshake_drop_reason(Code code) {
  switch (code) {
    case Code::kDeadlineExceeded:
      return "handshake_timeout";
    case Code::kPeerLost:
      return "closed_in_handshake";
    case Code::kIdentityMismatch:
      return "identity_mismatch";
    case Code::kUnauthenticated:
      return "unauthenticated";
    case Code::kUnsupported:
      return "unsupported_version";
    case Code::kPermissionDenied:
      return "foreign_user";
    case Code::kUnavailable:
      return "no_control_connection";
    case Code::kResourceExhausted:
      return "too_many_connections";
    case Code::kCancelled:
      return "";
    default:
      return "malformed_handshake";
  }
}

std::string_view service_drop_reason(Code code) {
  switch (code) {
    case Code::kOk:  // a control connection: its end is the loss of a peer, and counted as that
    case Code::kPeerLost:
    case Code::kCancelled:
      return "";
    case Code::kDeadlineExceeded:
      return "stalled";
    case Code::kUnauthenticated:
      return "forged_frame";
    case Code::kProtocolError:
    case Code::kDataCorrupt:
      return "malformed_request";
    default:
      return "failed";
  }
}

void drop(EngineCore& core, std::string_view reason, const Status& why) {
  if (reason.empty()) return;
  core.counters.add_dropped(reason);
  log_event(LogLevel::kInfo, "connection_dropped", {{"reason", reason}, {"why", why}});
}

Status check_purpose(const EngineCore& core, const InboundConnection& connection, const wire::Hello& hello) {
  if (hello.purpose == wire::Purpose::kControl) return {};
  if (hello.purpose == wire::Purpose::kShmAttach && !connection.same_host()) {
    return {Code::kProtocolError, "shared memory is attached over the same-host listener only"};
  }
  if (core.peers.has_node(hello.self)) return {};
  return {Code::kUnavailable, "node " + hello.self.to_string() + " has no control connection here"};
}

Status too_many_connections(const EngineCore& core, const wire::Hello& hello) {
  return {
      Code::kResourceExhausted,
      "node " + core.local.id.to_string() + " at " + core.local.endpoint + " serves " +
          std::to_string(core.options.max_connections) + " connections, as many as its max_connections allows, and " +
          "refuses one more, of node " + hello.self.to_string() +
          ": raise max_connections there (a peer takes 1 + tcp_streams of them), or close peers that are not needed"};
}

Result<wire::Hello> admit(EngineCore& core, InboundConnection& connection) {
  const Wait wait{deadline_in(kHandshakeTimeout), &connection.interrupt()};
  if (connection.same_host()) KVF_RETURN_IF_ERROR(check_same_user(connection.fd()));
  KVF_ASSIGN_OR_RETURN(wire::Hello hello, receive_greeting(connection.channel(), core.local, wait));
  // A node without a secret listens on loopback only, which all users of the host can reach.
  Status admitted = core.local.secret.empty() ? check_same_user(connection.fd()) : Status();
  if (admitted.ok() && !core.inbound.set_node(connection, hello.self)) {
    admitted = too_many_connections(core, hello);
  }
  // After set_node(): if the control connection is lost from here on, this one is interrupted.
  if (admitted.ok()) admitted = check_purpose(core, connection, hello);
  if (admitted.ok()) return hello;
  send_refusal(connection.channel(), admitted);
  return admitted;
}

Result<PeerImpl::Identity> identity_from(EngineCore& core, const InboundConnection& connection,
                                         const wire::Hello& hello) {
  PeerImpl::Identity identity;
  identity.node_id = hello.self;
  identity.same_host = core.local.host.same_host(hello.host);
  identity.shm_name = hello.shm_name;
  if (!hello.endpoint.empty()) {
    KVF_ASSIGN_OR_RETURN(identity.endpoint, Endpoint::parse(hello.endpoint));
  }
  identity.rails = usable_rails(hello.rails, connection.fd());
  identity.handle = core.peers.next_handle();
  return identity;
}

Status serve_control(const std::shared_ptr<EngineCore>& core, InboundConnection& connection, const wire::Hello& hello) {
  auto identity = identity_from(*core, connection, hello);
  if (!identity.ok()) {
    send_refusal(connection.channel(), identity.status());
    return {Code::kProtocolError, identity.status().message()};
  }
  const auto peer = std::make_shared<PeerImpl>(core, *std::move(identity), connection.take_channel());
  if (!core->peers.add(peer)) return {Code::kCancelled, "the engine is closed"};
  core->counters.add(Counters::kPeersConnected);
  peer->serve();
  return {};
}

Status serve_data(EngineCore& core, InboundConnection& connection) {
  const auto announce = [&](std::uint32_t number) {
    return core.inbound.set_number(connection, number)
               ? Status()
               : Status(Code::kCancelled, "the peer ended the connection before it was known");
  };
  const TcpServer::Options options{core.options.transfer_timeout, announce};
  return TcpServer(connection.channel(), connection.interrupt(), core.regions, core.counters, options).serve();
}

Status serve(const std::shared_ptr<EngineCore>& core, InboundConnection& connection, const wire::Hello& hello) {
  switch (hello.purpose) {
    case wire::Purpose::kControl:
      return serve_control(core, connection, hello);
    case wire::Purpose::kTcpData:
      if (core->local.host.same_host(hello.host)) tune_same_host_socket(connection.fd());
      KVF_RETURN_IF_ERROR(watch_link(connection.fd(), core->options.link_timeout));
      return serve_data(*core, connection);
    case wire::Purpose::kShmAttach:
      return core->attachments.serve(connection.fd(), connection.interrupt(), core->directory, core->arenas);
  }
  return {Code::kProtocolError, "unknown purpose"};
}

}  // namespace

void serve_inbound(const std::shared_ptr<EngineCore>& core, const std::shared_ptr<InboundConnection>& connection) {
  const auto hello = admit(*core, *connection);
  if (!hello.ok()) {
    drop(*core, handshake_drop_reason(hello.status().code()), hello.status());
  } else {
    const Status end = serve(core, *connection, *hello);
    if (end.code() == Code::kProtocolError) send_refusal(connection->channel(), end);
    drop(*core, service_drop_reason(end.code()), end);
  }
  core->inbound.remove(*connection);
}

}  // namespace kvferry
