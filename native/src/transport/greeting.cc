#include "transport/greeting.h"

#include <unistd.h>

#include "base/deadline.h"
#include "base/limits.h"
#include "base/local_peer.h"
#include "base/log.h"
#include "base/random.h"
#include "transport/tls_start.h"
#include "wire/frame.h"
#include "wire/handshake.h"

namespace kvferry {
namespace {

constexpr milliseconds kRefusalTimeout{200};

wire::Nonce new_nonce() {
  wire::Nonce nonce;
  fill_random(std::as_writable_bytes(std::span(nonce)));
  return nonce;
}

bool is_loopback(const std::string& endpoint) {
  const auto parsed = Endpoint::parse(endpoint);
  return parsed.ok() && parsed->is_loopback();
}

// A loopback address would send another host to itself: it is not told there.
template <typename Greeting>
void tell_addresses(const LocalNode& local, int fd, wire::Purpose purpose, Greeting* out) {
  const bool everything = stays_on_host(fd);
  out->endpoint = everything || !is_loopback(local.endpoint) ? local.endpoint : "";
  if (purpose != wire::Purpose::kControl) return;
  if (out->endpoint.empty()) {
    log_event(LogLevel::kWarning, "loopback_not_advertised",
              {{"endpoint", local.endpoint},
               {"fix", "set transfer.bind or transfer.advertise to an address that other hosts can reach"}});
  }
  for (const LocalRail& rail : local.rails) {
    if (everything || !rail.endpoint.is_loopback()) out->rails.push_back({rail.endpoint.to_string(), rail.speed_mbit});
  }
}

wire::Shared shared_with_peer(const LocalNode& local, const Channel& channel) {
  return {local.secret, channel.tls() != nullptr ? as_byte_view(channel.tls()->binding()) : ByteView()};
}

// Nobody can take over a unix socket: the kernel vouches for what comes by it. TLS has tags of its own.
void tag_frames(Channel& channel, const LocalNode& local, wire::Role self, const wire::Hello& hello,
                const wire::HelloAck& ack) {
  if (local.secret.empty() || channel.tls() != nullptr || is_unix_socket(channel.fd())) return;
  const auto tagger = [&](wire::Role sender) {
    return wire::FrameTagger(sender, wire::frame_key(local.secret, sender, hello, ack));
  };
  const wire::Role other = self == wire::Role::kInitiator ? wire::Role::kAcceptor : wire::Role::kInitiator;
  channel.authenticate(tagger(self), tagger(other));
}

// Receives one frame of the wanted type; an ERROR frame becomes its Status.
Result<Frame> expect(Channel& channel, FrameType wanted, const Wait& wait) {
  Result<Frame> frame = channel.receive(wait, kMaxHelloBytes);
  if (!frame.ok()) return frame;
  if (frame->header.type == FrameType::kError) return status_of_error_frame(frame->body);
  if (frame->header.type != wanted) {
    return {Code::kProtocolError, "handshake: got " + std::string(frame_type_name(frame->header.type)) +
                                      " instead of " + std::string(frame_type_name(wanted))};
  }
  return frame;
}

}  // namespace

bool stays_on_host(int fd) {
  const auto local = local_endpoint(fd);
  if (!local.ok() || local->is_loopback()) return local.ok();
  const auto remote = remote_endpoint(fd);
  return remote.ok() && remote->host() == local->host();
}

std::vector<PeerRail> usable_rails(const std::vector<wire::RailAddress>& told, int fd) {
  const bool same_host = stays_on_host(fd);
  std::vector<PeerRail> rails;
  for (const wire::RailAddress& rail : told) {
    const auto endpoint = Endpoint::parse(rail.endpoint);
    if (!endpoint.ok() || endpoint->is_wildcard() || endpoint->port() == 0) continue;
    if (same_host || !endpoint->is_loopback()) rails.push_back({*endpoint, rail.speed_mbit});
  }
  return rails;
}

std::string shm_name_of(const NodeId& id) { return "unix:@kvferry-" + id.to_string(); }

Status status_of_error_frame(ByteView body) {
  Result<wire::Error> error = wire::Error::decode(body);
  if (!error.ok()) return error.status();
  if (error->code == Code::kOk) return {Code::kProtocolError, "the peer reported an error without a code"};
  return {error->code, "refused by the peer: " + error->message};
}

Status check_same_user(int fd) {
  uid_t user = 0;
  if (is_unix_socket(fd)) {
    KVF_ASSIGN_OR_RETURN(const PeerCredentials who, peer_credentials(fd));
    user = who.uid;
  } else {
    const auto who = user_of_local_peer(fd);
    if (!who.ok()) return {Code::kPermissionDenied, who.status().message() + "; set cluster_secret on both sides"};
    user = *who;
  }
  if (user == ::geteuid()) return {};
  return {Code::kPermissionDenied, "without a cluster secret only processes of one user may connect; this is uid " +
                                       std::to_string(::geteuid()) + ", the peer uid " + std::to_string(user)};
}

void send_refusal(Channel& channel, const Status& why) {
  const wire::Error error{why.code(), why.message()};
  // The connection ends in any case; the text is a courtesy.
  (void)channel.send(FrameType::kError, 0, error.encode(), Wait{deadline_in(kRefusalTimeout)});
}

Result<wire::HelloAck> greet(Channel& channel, const LocalNode& local, const NodeId& expected, wire::Purpose purpose,
                             const Wait& wait) {
  wire::Hello hello;
  hello.min_version = hello.max_version = kWireVersion;
  hello.purpose = purpose;
  hello.has_secret = !local.secret.empty();
  hello.self = local.id;
  hello.expected = expected;
  hello.host = local.host;
  hello.nonce = new_nonce();
  tell_addresses(local, channel.fd(), purpose, &hello);
  hello.shm_name = local.shm_name;
  const Bytes hello_body = hello.encode();
  KVF_RETURN_IF_ERROR(start_tls_to(channel, local, wait));
  const wire::Shared shared = shared_with_peer(local, channel);
  const Status sent = channel.send(FrameType::kHello, 0, hello_body, wait);
  // An acceptor that hung up may have said why before: TLS 1.3 lets us speak before we hear that we are not accepted.
  if (!sent.ok() && sent.code() != Code::kPeerLost) return sent;

  Result<Frame> frame = expect(channel, FrameType::kHelloAck, wait);
  if (!frame.ok()) return frame.status();
  Result<wire::HelloAck> ack = wire::HelloAck::decode(frame->body);
  if (!ack.ok()) return ack;
  KVF_RETURN_IF_ERROR(wire::check_hello_ack(*ack, frame->body, hello, hello_body, shared));

  const wire::Auth auth{wire::handshake_proof(shared, wire::Role::kInitiator, hello_body, frame->body)};
  KVF_RETURN_IF_ERROR(channel.send(FrameType::kAuth, 0, auth.encode(), wait));
  tag_frames(channel, local, wire::Role::kInitiator, hello, *ack);
  return ack;
}

namespace {

Status answer(Channel& channel, const LocalNode& local, const wire::Hello& hello, ByteView hello_body,
              const Wait& wait) {
  KVF_RETURN_IF_ERROR(wire::check_hello(hello, local.id, local.endpoint, !local.secret.empty()));
  const wire::Shared shared = shared_with_peer(local, channel);
  wire::HelloAck ack;
  ack.version = kWireVersion;
  ack.has_secret = !local.secret.empty();
  ack.self = local.id;
  ack.host = local.host;
  ack.nonce = new_nonce();
  tell_addresses(local, channel.fd(), hello.purpose, &ack);
  ack.shm_name = local.shm_name;
  // The proof covers everything before it, so it is made over the encoding with an empty one.
  ack.proof = wire::handshake_proof(shared, wire::Role::kAcceptor, hello_body, ack.encode());
  const Bytes ack_body = ack.encode();
  KVF_RETURN_IF_ERROR(channel.send(FrameType::kHelloAck, 0, ack_body, wait));

  Result<Frame> frame = expect(channel, FrameType::kAuth, wait);
  if (!frame.ok()) return frame.status();
  Result<wire::Auth> auth = wire::Auth::decode(frame->body);
  if (!auth.ok()) return auth.status();
  KVF_RETURN_IF_ERROR(wire::check_auth(*auth, hello_body, ack_body, shared));
  tag_frames(channel, local, wire::Role::kAcceptor, hello, ack);
  return {};
}

}  // namespace

Result<wire::Hello> receive_greeting(Channel& channel, const LocalNode& local, const Wait& wait) {
  KVF_RETURN_IF_ERROR(start_tls_from(channel, local, wait));
  Result<Frame> frame = expect(channel, FrameType::kHello, wait);
  if (!frame.ok()) return frame.status();
  Result<wire::Hello> hello = wire::Hello::decode(frame->body);
  Status status = hello.ok() ? answer(channel, local, *hello, frame->body, wait) : hello.status();
  if (status.ok()) return hello;
  send_refusal(channel, status);
  return status;
}

}  // namespace kvferry
