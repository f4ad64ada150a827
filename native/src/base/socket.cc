#include "base/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

#include "base/deadline.h"
#include "base/signal_hook.h"

namespace kvferry {
namespace {

constexpr milliseconds kLinkLook{500};  // how often a waiting thread looks whether its link is dead

bool is_tcp(const Endpoint& endpoint) { return endpoint.family() != Endpoint::Family::kUnix; }

Code code_of_setup_error(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
      return Code::kPermissionDenied;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return Code::kResourceExhausted;
    case EAFNOSUPPORT:
    case EPROTONOSUPPORT:
      return Code::kUnsupported;
    default:
      return Code::kUnavailable;
  }
}

Result<UniqueFd> new_socket(const Endpoint& endpoint) {
  int domain = AF_UNIX;
  if (endpoint.family() == Endpoint::Family::kIPv4) domain = AF_INET;
  if (endpoint.family() == Endpoint::Family::kIPv6) domain = AF_INET6;
  UniqueFd fd(::socket(domain, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid())
    return errno_status(code_of_setup_error(errno), "cannot make a socket for " + endpoint.to_string(), errno);
  return fd;
}

Status set_int(int fd, int level, int option, int value, std::string_view what) {
  if (::setsockopt(fd, level, option, &value, sizeof(value)) == 0) return {};
  return errno_status(Code::kInternal, what, errno);
}

Result<Endpoint> endpoint_of(int fd, int (*ask)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  auto* const address = reinterpret_cast<sockaddr*>(&storage);
  if (ask(fd, address, &length) != 0)
    return errno_status(Code::kInternal, "cannot ask a socket for its address", errno);
  return Endpoint::from_sockaddr(address, length);
}

// A loopback connect to a free ephemeral port can meet itself (simultaneous open): that is nobody.
bool is_connected_to_itself(int fd) {
  const auto local = local_endpoint(fd);
  const auto remote = remote_endpoint(fd);
  return local.ok() && remote.ok() && *local == *remote;
}

// One attempt. 0, or the errno of the failure; EAGAIN: the backlog of a unix listener is full.
Result<int> try_connect(int fd, const sockaddr* address, socklen_t length, const Wait& wait) {
  if (::connect(fd, address, length) == 0) return 0;
  if (errno != EINPROGRESS && errno != EINTR) return errno;
  KVF_RETURN_IF_ERROR(wait_for(fd, POLLOUT, wait));
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

Status bind_before_connect(int fd, const Endpoint& from) {
  sockaddr_storage storage{};
  KVF_ASSIGN_OR_RETURN(const socklen_t length, from.to_sockaddr(&storage));
  // The port is chosen at connect(), when the other end is known, so that one address can have more than 28,000 ends.
  KVF_RETURN_IF_ERROR(set_int(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1, "IP_BIND_ADDRESS_NO_PORT"));
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&storage), length) == 0) return {};
  return errno_status(code_of_setup_error(errno), "cannot use the local address", errno);
}

// Waits a moment for room in a unix backlog, which no event tells of.
Status pause_before_retry(const Wait& wait) {
  const Wait moment{sooner(wait.deadline, deadline_in(milliseconds(2))), wait.interrupt};
  const Status status = wait_for(-1, 0, moment);
  if (status.code() == Code::kDeadlineExceeded && !expired(wait.deadline)) return {};
  return status;
}

bool is_transient_accept_error(int error) {
  switch (error) {
    case EINTR:
    case ECONNABORTED:
    case EPROTO:
    case ENETDOWN:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case EOPNOTSUPP:
    case ENETUNREACH:
      return true;
    default:
      return false;
  }
}

}  // namespace

Result<Interrupt> Interrupt::create() {
  UniqueFd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!fd.valid()) return errno_status(Code::kResourceExhausted, "cannot make an eventfd", errno);
  return Interrupt(std::move(fd));
}

void Interrupt::set() const {
  const std::uint64_t one = 1;
  // EAGAIN would mean that the counter is full, that is, set.
  [[maybe_unused]] const ssize_t done = ::write(fd_.get(), &one, sizeof(one));
}

void Interrupt::clear() const {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t done = ::read(fd_.get(), &count, sizeof(count));
}

bool Interrupt::is_set() const {
  pollfd poller{fd_.get(), POLLIN, 0};
  return ::poll(&poller, 1, 0) > 0;
}

Result<UniqueFd> listen_on(const Endpoint& endpoint, int backlog) {
  sockaddr_storage storage{};
  KVF_ASSIGN_OR_RETURN(const socklen_t length, endpoint.to_sockaddr(&storage));
  KVF_ASSIGN_OR_RETURN(UniqueFd fd, new_socket(endpoint));
  if (is_tcp(endpoint)) KVF_RETURN_IF_ERROR(set_int(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"));
  if (endpoint.family() == Endpoint::Family::kIPv6) {
    KVF_RETURN_IF_ERROR(set_int(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0, "IPV6_V6ONLY"));
  }
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&storage), length) != 0) {
    return errno_status(code_of_setup_error(errno), "cannot bind to " + endpoint.to_string(), errno);
  }
  if (::listen(fd.get(), backlog) != 0) {
    return errno_status(code_of_setup_error(errno), "cannot listen on " + endpoint.to_string(), errno);
  }
  return fd;
}

Result<Endpoint> local_endpoint(int fd) { return endpoint_of(fd, ::getsockname); }
Result<Endpoint> remote_endpoint(int fd) { return endpoint_of(fd, ::getpeername); }

Result<UniqueFd> connect_to(const Endpoint& endpoint, const Wait& wait, const Endpoint* from) {
  const std::string what =
      "cannot connect to " + endpoint.to_string() + (from == nullptr ? "" : " from " + from->host());
  sockaddr_storage storage{};
  KVF_ASSIGN_OR_RETURN(const socklen_t length, endpoint.to_sockaddr(&storage));
  for (;;) {
    KVF_ASSIGN_OR_RETURN(UniqueFd fd, new_socket(endpoint));
    if (from != nullptr) KVF_RETURN_IF_ERROR(bind_before_connect(fd.get(), *from).with_context(what));
    const auto error = try_connect(fd.get(), reinterpret_cast<const sockaddr*>(&storage), length, wait);
    if (!error.ok()) return error.status().with_context(what);
    if (*error == EAGAIN && !is_tcp(endpoint)) {
      if (const Status status = pause_before_retry(wait); !status.ok()) return status.with_context(what);
      continue;
    }
    if (*error != 0) return errno_status(code_of_setup_error(*error), what, *error);
    if (!is_tcp(endpoint)) return fd;
    if (is_connected_to_itself(fd.get())) return Status(Code::kUnavailable, what + ": nobody listens there");
    KVF_RETURN_IF_ERROR(set_no_delay(fd.get()));
    return fd;
  }
}

Result<Accepted> accept_from(int listener, const Wait& wait) {
  for (;;) {
    sockaddr_storage storage{};
    socklen_t length = sizeof(storage);
    auto* const address = reinterpret_cast<sockaddr*>(&storage);
    UniqueFd fd(::accept4(listener, address, &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      // A peer may have bound its end to a name that we do not write; that is no reason to refuse it.
      sockaddr unnamed{};
      unnamed.sa_family = storage.ss_family;
      auto remote = Endpoint::from_sockaddr(address, length);
      if (!remote.ok()) remote = Endpoint::from_sockaddr(&unnamed, sizeof(unnamed.sa_family));
      if (!remote.ok()) return remote.status();
      if (is_tcp(*remote)) KVF_RETURN_IF_ERROR(set_no_delay(fd.get()));
      return Accepted{std::move(fd), std::move(*remote)};
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      KVF_RETURN_IF_ERROR(wait_for(listener, POLLIN, wait));
    } else if (!is_transient_accept_error(errno)) {
      const Code code = code_of_setup_error(errno);
      return errno_status(code == Code::kUnavailable ? Code::kInternal : code, "cannot accept a connection", errno);
    } else if (expired(wait.deadline)) {
      return {Code::kDeadlineExceeded, "no connection came in time"};
    }
  }
}

namespace {

// kPeerLost when the link looked dead the last time, too: once may be a probe whose answer is just under way.
Status look_at_link(int fd, milliseconds timeout, bool* looked_dead) {
  const bool dead = is_link_dead(fd, timeout);
  if (!std::exchange(*looked_dead, dead) || !dead) return {};
  return {Code::kPeerLost, "the link is dead: nothing was acknowledged for " + std::to_string(timeout.count()) + " ms"};
}

// Who, how long, what to do.
Status no_progress(int fd, short events, Clock::time_point began) {
  if (fd < 0) return {Code::kDeadlineExceeded, "the time allowed is up"};
  const auto remote = remote_endpoint(fd);
  const std::string who = remote.ok() && is_tcp(*remote) ? remote->to_string() : "the other end";
  const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - began).count();
  return {Code::kDeadlineExceeded,
          ((events & POLLIN) != 0 ? "nothing came from " : "nothing could be sent to ") + who + " for " +
              std::to_string(waited) +
              " ms, until the time allowed was up: look whether it is stopped or overloaded, or " +
              "whether a firewall drops what is sent"};
}

}  // namespace

Status wait_for(int fd, short events, const Wait& wait) {
  const Clock::time_point began = Clock::now();
  const int interrupt_fd = wait.interrupt != nullptr ? wait.interrupt->fd() : -1;  // poll ignores negative ones
  const bool looks = wait.link_timeout.count() > 0;
  bool looked_dead = false;
  for (;;) {
    const bool sleeps_through = !looks && !SignalHook::lives();
    const Deadline next = sleeps_through ? wait.deadline : sooner(wait.deadline, deadline_in(kLinkLook));
    std::array<pollfd, 2> pollers{pollfd{fd, events, 0}, pollfd{interrupt_fd, POLLIN, 0}};
    const int ready = ::poll(pollers.data(), pollers.size(), poll_timeout_ms(next));
    if (ready < 0 && errno != EINTR) return errno_status(Code::kInternal, "poll", errno);
    if (ready <= 0) SignalHook::call();
    if (ready > 0 && pollers[1].revents != 0) return {Code::kCancelled, "interrupted"};
    if (ready > 0 && (pollers[0].revents & POLLNVAL) != 0) return {Code::kInternal, "poll on a closed descriptor"};
    if (ready > 0) return {};
    if (expired(wait.deadline)) return no_progress(fd, events, began);
    if (looks) KVF_RETURN_IF_ERROR(look_at_link(fd, wait.link_timeout, &looked_dead));
  }
}

Status watch_link(int fd, milliseconds timeout) {
  const int whole = static_cast<int>(std::clamp<milliseconds::rep>(timeout.count() / 1000, 3, 3600));
  const int idle_s = std::max(1, whole / 4);
  KVF_RETURN_IF_ERROR(set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"));
  KVF_RETURN_IF_ERROR(set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle_s, "TCP_KEEPIDLE"));
  KVF_RETURN_IF_ERROR(set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, idle_s, "TCP_KEEPINTVL"));
  return set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, whole / idle_s, "TCP_KEEPCNT");
}

bool is_link_dead(int fd, milliseconds timeout) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;  // not TCP
  const bool unanswered = info.tcpi_retransmits > 0 || info.tcpi_probes > 0;
  return unanswered && std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv) >= timeout.count();
}

bool is_hung_up(int fd) {
  pollfd poller{fd, POLLRDHUP, 0};
  return ::poll(&poller, 1, 0) > 0;
}

bool is_unix_socket(int fd) {
  int domain = 0;
  socklen_t length = sizeof(domain);
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_UNIX;
}

Result<PeerCredentials> peer_credentials(int fd) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return errno_status(Code::kInternal, "SO_PEERCRED", errno);
  }
  return PeerCredentials{credentials.pid, credentials.uid, credentials.gid};
}

Status set_no_delay(int fd) { return set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"); }

Status set_congestion_control(int fd, std::string_view algorithm) {
  const auto length = static_cast<socklen_t>(algorithm.size());
  if (::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, algorithm.data(), length) == 0) return {};
  return errno_status(errno == EPERM ? Code::kPermissionDenied : Code::kUnsupported,
                      "congestion control '" + std::string(algorithm) + "'", errno);
}

void abort_connection(UniqueFd fd) {
  const linger now{1, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

void shut_down(int fd) { ::shutdown(fd, SHUT_RDWR); }
void shut_down_sending(int fd) { ::shutdown(fd, SHUT_WR); }

}  // namespace kvferry
