#include "base/subnet.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace kvferry {

bool same_subnet(const std::string& a, const std::string& b, unsigned prefix_length) {
  const int family = a.find(':') == std::string::npos ? AF_INET : AF_INET6;
  std::array<std::uint8_t, sizeof(in6_addr)> first{}, second{};
  const auto parse = [&](const std::string& host, std::array<std::uint8_t, sizeof(in6_addr)>& out) {
    return ::inet_pton(family, host.substr(0, host.find('%')).c_str(), out.data()) == 1;
  };
  if (!parse(a, first) || !parse(b, second)) return false;
  const std::size_t bits = std::min<std::size_t>(prefix_length, family == AF_INET ? 32 : 128);
  for (std::size_t bit = 0; bit < bits; ++bit) {
    const unsigned mask = 0x80u >> (bit % 8);
    if (((first[bit / 8] ^ second[bit / 8]) & mask) != 0) return false;
  }
  return bits > 0;
}

}  // namespace kvferry
