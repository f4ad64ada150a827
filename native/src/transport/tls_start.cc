#include "transport/tls_start.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <string>

#include "base/socket.h"

namespace kvferry {
namespace {

constexpr std::uint8_t kHandshakeRecord = 0x16;  // RFC 8446, section 5.1
constexpr std::size_t kMaxUnread = 16u << 10;    // more than any honest first message

Status differs(bool here) {
  return {Code::kUnauthenticated, std::string("transfer.tls is ") + (here ? "on" : "off") + " at this node and " +
                                      (here ? "off" : "on") + " at the other; set it alike on both sides"};
}

// The first byte of a caller, left where it is.
Result<std::uint8_t> first_byte(int fd, const Wait& wait) {
  KVF_RETURN_IF_ERROR(wait_for(fd, POLLIN, wait));
  std::uint8_t first = 0;
  const ssize_t got = ::recv(fd, &first, 1, MSG_PEEK);
  if (got < 0) return errno_status(Code::kPeerLost, "handshake", errno);
  if (got == 0) return {Code::kPeerLost, "handshake: closed by the peer"};
  return first;
}

}  // namespace

Status start_tls_to(Channel& channel, const LocalNode& local, const Wait& wait) {
  if (local.tls == nullptr || is_unix_socket(channel.fd())) return {};
  const Status started = channel.start_tls(*local.tls, TlsSide::kConnect, wait);
  return started.code() == Code::kUnsupported ? differs(true) : started;
}

Status start_tls_from(Channel& channel, const LocalNode& local, const Wait& wait) {
  if (is_unix_socket(channel.fd())) return {};
  KVF_ASSIGN_OR_RETURN(const std::uint8_t first, first_byte(channel.fd(), wait));
  const bool here = local.tls != nullptr, there = first == kHandshakeRecord;
  if (here && there) return channel.start_tls(*local.tls, TlsSide::kAccept, wait);
  if (here == there) return {};
  // What is left unread when the socket closes would take our answer with it.
  std::array<std::byte, kMaxUnread> unread;
  (void)::recv(channel.fd(), unread.data(), unread.size(), MSG_DONTWAIT);
  const Status why = differs(here);
  send_refusal(channel, why);
  return why;
}

}  // namespace kvferry
