#include "base/local_peer.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "base/unique_fd.h"

namespace kvferry {
namespace {

struct Address {  // IPv4 as IPv4-mapped IPv6
  std::array<std::uint32_t, 4> words{};
  in_port_t port = 0;  // network order, as are the words

  bool is_ipv4() const { return words[0] == 0 && words[1] == 0 && words[2] == htonl(0xffff); }
};

std::optional<Address> address_of(int fd, int (*ask)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (ask(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return std::nullopt;
  Address out;
  if (storage.ss_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &storage, sizeof(in));
    out.words = {0, 0, htonl(0xffff), in.sin_addr.s_addr};
    out.port = in.sin_port;
    return out;
  }
  if (storage.ss_family != AF_INET6) return std::nullopt;
  sockaddr_in6 in6{};
  std::memcpy(&in6, &storage, sizeof(in6));
  std::memcpy(out.words.data(), &in6.sin6_addr, sizeof(in6.sin6_addr));
  out.port = in6.sin6_port;
  return out;
}

// `theirs` and `ours` as the peer's socket sees them: local, remote.
std::optional<uid_t> ask_netlink(const Address& theirs, const Address& ours) {
  struct {
    nlmsghdr header{};
    inet_diag_req_v2 body{};
  } request;
  request.header.nlmsg_len = sizeof(request);
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.body.sdiag_family = theirs.is_ipv4() ? AF_INET : AF_INET6;
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~0U;
  inet_diag_sockid& id = request.body.id;
  id.idiag_sport = theirs.port;
  id.idiag_dport = ours.port;
  const std::size_t skip = theirs.is_ipv4() ? 3 : 0;
  std::copy(theirs.words.begin() + static_cast<std::ptrdiff_t>(skip), theirs.words.end(), id.idiag_src);
  std::copy(ours.words.begin() + static_cast<std::ptrdiff_t>(skip), ours.words.end(), id.idiag_dst);
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;

  const UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!fd.valid() || ::send(fd.get(), &request, sizeof(request), 0) != sizeof(request)) return std::nullopt;
  alignas(nlmsghdr) std::array<char, 8192> answer{};
  const ssize_t got = ::recv(fd.get(), answer.data(), answer.size(), MSG_DONTWAIT);  // answered within send()
  nlmsghdr header{};
  inet_diag_msg found{};
  if (got < static_cast<ssize_t>(NLMSG_HDRLEN + sizeof(found))) return std::nullopt;
  std::memcpy(&header, answer.data(), sizeof(header));
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY) return std::nullopt;
  std::memcpy(&found, answer.data() + NLMSG_HDRLEN, sizeof(found));
  return found.idiag_uid;
}

// "0100007F:1F90", as /proc/net/tcp and tcp6 write it.
std::string table_text(const Address& address, bool ipv4) {
  std::string out;
  std::array<char, 16> part{};
  for (std::size_t i = ipv4 ? 3 : 0; i < address.words.size(); ++i) {
    std::snprintf(part.data(), part.size(), "%08X", address.words[i]);
    out += part.data();
  }
  std::snprintf(part.data(), part.size(), ":%04X", static_cast<unsigned>(ntohs(address.port)));
  return out + part.data();
}

// For kernels without the netlink interface.
std::optional<uid_t> search_table(const char* path, bool ipv4, const Address& theirs, const Address& ours) {
  const std::string wanted = " " + table_text(theirs, ipv4) + " " + table_text(ours, ipv4) + " ";
  std::ifstream table(path);
  for (std::string line; std::getline(table, line);) {
    const std::size_t place = line.find(wanted);
    if (place == std::string::npos) continue;
    std::istringstream rest(line.substr(place + wanted.size()));
    std::string state, queues, timer, retransmits;
    uid_t user = 0;
    if (rest >> state >> queues >> timer >> retransmits >> user) return user;
  }
  return std::nullopt;
}

}  // namespace

Result<uid_t> user_of_local_peer(int fd) {
  const auto theirs = address_of(fd, ::getpeername), ours = address_of(fd, ::getsockname);
  if (theirs && ours) {
    auto user = ask_netlink(*theirs, *ours);
    if (!user && theirs->is_ipv4()) user = search_table("/proc/net/tcp", true, *theirs, *ours);
    if (!user) user = search_table("/proc/net/tcp6", false, *theirs, *ours);
    if (user) return *user;
  }
  return {Code::kUnavailable, "the kernel does not tell which user the peer is"};
}

}  // namespace kvferry
