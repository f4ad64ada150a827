// The one address type: IPv4, IPv6 (with zone), unix path, unix abstract name. format(parse(x)) == x for canonical x.
//   127.0.0.1:8000   [::1]:8000   [fe80::1%eth0]:8000   unix:/run/kvf.sock   unix:@name
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "kvferry/export.h"
#include "kvferry/status.h"

namespace kvferry {

class KVFERRY_API Endpoint {
 public:
  enum class Family : std::uint8_t { kIPv4, kIPv6, kUnix };

  // Numeric addresses only, plus the name "localhost" (= 127.0.0.1). Bare IPv6 without brackets is refused when a
  // port follows, with a message that shows the bracketed form. IPv4-mapped IPv6 is kept as IPv6.
  static Result<Endpoint> parse(std::string_view text);
  static Result<Endpoint> from_sockaddr(const sockaddr* address, socklen_t length);

  Family family() const { return family_; }
  const std::string& host() const { return host_; }  // address with zone, or the unix path ("@name" if abstract)
  std::uint16_t port() const { return port_; }
  Endpoint with_port(std::uint16_t port) const;
  bool is_loopback() const;  // unix counts as loopback
  bool is_wildcard() const;
  std::string to_string() const;
  Result<socklen_t> to_sockaddr(sockaddr_storage* out) const;
  bool operator==(const Endpoint&) const = default;

 private:
  friend struct EndpointParser;
  Family family_ = Family::kIPv4;
  std::string host_ = "127.0.0.1";
  std::uint16_t port_ = 0;
};

}  // namespace kvferry
