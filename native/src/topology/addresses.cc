#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <bit>
#include <cstring>
#include <memory>

#include "kvferry/endpoint.h"
#include "topology/read_topology.h"

namespace kvferry {
namespace {

unsigned prefix_length(const sockaddr* mask) {
  if (mask == nullptr) return 0;
  if (mask->sa_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, mask, sizeof(in));
    return static_cast<unsigned>(std::popcount(in.sin_addr.s_addr));
  }
  sockaddr_in6 in6{};
  std::memcpy(&in6, mask, sizeof(in6));
  unsigned bits = 0;
  for (const std::uint8_t byte : in6.sin6_addr.s6_addr) bits += static_cast<unsigned>(std::popcount(byte));
  return bits;
}

}  // namespace

AddressesByNic addresses_of_this_host() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  AddressesByNic found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const sa_family_t family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    const auto endpoint = Endpoint::from_sockaddr(entry->ifa_addr, length);
    if (endpoint.ok()) found[entry->ifa_name].push_back({endpoint->host(), prefix_length(entry->ifa_netmask)});
  }
  return found;
}

}  // namespace kvferry
