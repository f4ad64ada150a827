#include "kvferry/endpoint.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <optional>

namespace kvferry {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";
constexpr std::size_t kMaxUnixPathBytes = sizeof(sockaddr_un::sun_path) - 1;
constexpr std::size_t kUnixHeaderBytes = offsetof(sockaddr_un, sun_path);

Status bad(std::string_view text, std::string_view why) {
  std::string shown(text.substr(0, 128));
  for (char& c : shown) c = (c >= ' ' && c < 0x7f) ? c : '?';
  return {Code::kInvalidArgument, "endpoint '" + shown + "': " + std::string(why)};
}

// Decimal without sign, spaces or leading zeros, at most `max`.
std::optional<std::uint32_t> parse_decimal(std::string_view text, std::uint32_t max) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool leading_zero = text.size() > 1 && text[0] == '0';
  if (error != std::errc{} || end != text.data() + text.size() || leading_zero || value > max) return std::nullopt;
  return value;
}

bool is_zone(std::string_view zone) {
  return !zone.empty() && zone.size() < IF_NAMESIZE && std::all_of(zone.begin(), zone.end(), [](char c) {
    return c > ' ' && c < 0x7f && c != '%' && c != ']' && c != '[' && c != '/';
  });
}

// The address in the one spelling that inet_ntop gives, or nothing.
std::optional<std::string> canonical_ip(int family, std::string_view text) {
  std::array<std::byte, sizeof(in6_addr)> address{};
  std::array<char, INET6_ADDRSTRLEN> out{};
  if (text.find('\0') != std::string_view::npos) return std::nullopt;
  if (::inet_pton(family, std::string(text).c_str(), address.data()) != 1) return std::nullopt;
  if (::inet_ntop(family, address.data(), out.data(), out.size()) == nullptr) return std::nullopt;
  return std::string(out.data());
}

// "address" or "address%zone" without brackets.
std::optional<std::string> canonical_ipv6(std::string_view text) {
  const std::size_t percent = text.find('%');
  auto address = canonical_ip(AF_INET6, text.substr(0, percent));
  if (!address || percent == std::string_view::npos) return address;
  const std::string_view zone = text.substr(percent + 1);
  if (!is_zone(zone)) return std::nullopt;
  return *address + "%" + std::string(zone);
}

in6_addr ipv6_of(std::string_view host) {
  in6_addr address{};
  ::inet_pton(AF_INET6, std::string(host.substr(0, host.find('%'))).c_str(), &address);
  return address;
}

in_addr ipv4_of(const std::string& host) {
  in_addr address{};
  ::inet_pton(AF_INET, host.c_str(), &address);
  return address;
}

bool is_ipv4_loopback(std::uint32_t network_order) { return (ntohl(network_order) >> 24) == 127; }

std::uint32_t mapped_ipv4(const in6_addr& address) {
  std::uint32_t value = 0;
  std::memcpy(&value, &address.s6_addr[12], sizeof(value));
  return value;
}

}  // namespace

struct EndpointParser {
  static Endpoint make(Endpoint::Family family, std::string host, std::uint16_t port) {
    Endpoint out;
    out.family_ = family;
    out.host_ = std::move(host);
    out.port_ = port;
    return out;
  }

  static Result<Endpoint> unix_name(std::string_view text) {
    const std::string_view path = text.substr(kUnixPrefix.size());
    if (path.size() < 2 || (path[0] != '/' && path[0] != '@')) {
      return bad(text, "a unix endpoint is unix:/absolute/path or unix:@abstract-name");
    }
    if (path.find('\0') != std::string_view::npos) return bad(text, "a unix path has no zero bytes");
    if (path.size() > kMaxUnixPathBytes) return bad(text, "a unix path has at most 107 bytes");
    return make(Endpoint::Family::kUnix, std::string(path), 0);
  }

  static Result<Endpoint> bracketed(std::string_view text) {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos) return bad(text, "the bracket is not closed");
    const auto host = canonical_ipv6(text.substr(1, close - 1));
    if (!host) return bad(text, "not an IPv6 address between the brackets");
    if (close + 1 >= text.size() || text[close + 1] != ':') return bad(text, "a port must follow, as in [::1]:8000");
    const auto port = parse_decimal(text.substr(close + 2), UINT16_MAX);
    if (!port) return bad(text, "the port must be a number from 0 to 65535");
    return make(Endpoint::Family::kIPv6, *host, static_cast<std::uint16_t>(*port));
  }

  static Result<Endpoint> plain(std::string_view text) {
    if (text.find("://") != std::string_view::npos) {
      return bad(text, "an endpoint is no URL: write host:port, as in 127.0.0.1:8000");
    }
    const std::size_t colon = text.rfind(':');
    if (colon == std::string_view::npos) return bad(text, "a port is missing, as in 127.0.0.1:8000 (0: any free port)");
    std::string_view host = text.substr(0, colon);
    const std::string_view port_text = text.substr(colon + 1);
    if (host.find(':') != std::string_view::npos) {
      return bad(text, "an IPv6 address with a port is written in brackets: [" + std::string(host) +
                           "]:" + std::string(port_text));
    }
    if (host == "localhost") host = "127.0.0.1";
    const auto address = canonical_ip(AF_INET, host);
    if (!address) return bad(text, "the host must be a numeric IPv4 address, a bracketed IPv6 address or localhost");
    const auto port = parse_decimal(port_text, UINT16_MAX);
    if (!port) return bad(text, "the port must be a number from 0 to 65535");
    return make(Endpoint::Family::kIPv4, *address, static_cast<std::uint16_t>(*port));
  }

  static Result<Endpoint> from_ipv6(const sockaddr_in6& in6) {
    std::array<char, INET6_ADDRSTRLEN> out{};
    ::inet_ntop(AF_INET6, &in6.sin6_addr, out.data(), out.size());
    std::string host(out.data());
    if (in6.sin6_scope_id != 0) {
      std::array<char, IF_NAMESIZE> name{};
      const bool named = ::if_indextoname(in6.sin6_scope_id, name.data()) != nullptr && is_zone(name.data());
      host += "%" + (named ? std::string(name.data()) : std::to_string(in6.sin6_scope_id));
    }
    return make(Endpoint::Family::kIPv6, std::move(host), ntohs(in6.sin6_port));
  }

  static Result<Endpoint> from_unix(const sockaddr_un& un, socklen_t length) {
    if (length <= kUnixHeaderBytes) return make(Endpoint::Family::kUnix, "", 0);  // a socket that was never bound
    const std::string_view path(un.sun_path, length - kUnixHeaderBytes);
    if (path[0] != '\0') return unix_name("unix:" + std::string(path.substr(0, path.find('\0'))));
    return unix_name("unix:@" + std::string(path.substr(1)));
  }
};

Result<Endpoint> Endpoint::parse(std::string_view text) {
  if (text.starts_with(kUnixPrefix)) return EndpointParser::unix_name(text);
  if (text.starts_with('[')) return EndpointParser::bracketed(text);
  return EndpointParser::plain(text);
}

Result<Endpoint> Endpoint::from_sockaddr(const sockaddr* address, socklen_t length) {
  const bool has_family = address != nullptr && length >= sizeof(sa_family_t);
  if (has_family && address->sa_family == AF_INET && length >= sizeof(sockaddr_in)) {
    sockaddr_in in{};
    std::memcpy(&in, address, sizeof(in));
    std::array<char, INET_ADDRSTRLEN> out{};
    ::inet_ntop(AF_INET, &in.sin_addr, out.data(), out.size());
    return EndpointParser::make(Family::kIPv4, out.data(), ntohs(in.sin_port));
  }
  if (has_family && address->sa_family == AF_INET6 && length >= sizeof(sockaddr_in6)) {
    sockaddr_in6 in6{};
    std::memcpy(&in6, address, sizeof(in6));
    return EndpointParser::from_ipv6(in6);
  }
  if (has_family && address->sa_family == AF_UNIX && length <= sizeof(sockaddr_un)) {
    sockaddr_un un{};
    std::memcpy(&un, address, length);
    return EndpointParser::from_unix(un, length);
  }
  return {Code::kInvalidArgument, "a socket address that is neither IPv4, IPv6 nor unix, or is cut short"};
}

Endpoint Endpoint::with_port(std::uint16_t port) const {
  Endpoint out = *this;
  if (family_ != Family::kUnix) out.port_ = port;
  return out;
}

bool Endpoint::is_loopback() const {
  if (family_ == Family::kUnix) return true;
  if (family_ == Family::kIPv4) return is_ipv4_loopback(ipv4_of(host_).s_addr);
  const in6_addr address = ipv6_of(host_);
  if (IN6_IS_ADDR_V4MAPPED(&address)) return is_ipv4_loopback(mapped_ipv4(address));
  return IN6_IS_ADDR_LOOPBACK(&address);
}

bool Endpoint::is_wildcard() const {
  if (family_ == Family::kUnix) return false;
  if (family_ == Family::kIPv4) return ipv4_of(host_).s_addr == INADDR_ANY;
  const in6_addr address = ipv6_of(host_);
  if (IN6_IS_ADDR_V4MAPPED(&address)) return mapped_ipv4(address) == INADDR_ANY;
  return IN6_IS_ADDR_UNSPECIFIED(&address);
}

std::string Endpoint::to_string() const {
  switch (family_) {
    case Family::kUnix:
      return std::string(kUnixPrefix) + host_;
    case Family::kIPv6:
      return "[" + host_ + "]:" + std::to_string(port_);
    case Family::kIPv4:
      break;
  }
  return host_ + ":" + std::to_string(port_);
}

Result<socklen_t> Endpoint::to_sockaddr(sockaddr_storage* out) const {
  std::memset(out, 0, sizeof(*out));
  if (family_ == Family::kIPv4) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(port_);
    in.sin_addr = ipv4_of(host_);
    std::memcpy(out, &in, sizeof(in));
    return socklen_t{sizeof(in)};
  }
  if (family_ == Family::kIPv6) {
    sockaddr_in6 in6{};
    in6.sin6_family = AF_INET6;
    in6.sin6_port = htons(port_);
    in6.sin6_addr = ipv6_of(host_);
    if (const std::size_t percent = host_.find('%'); percent != std::string::npos) {
      const std::string zone = host_.substr(percent + 1);
      in6.sin6_scope_id = ::if_nametoindex(zone.c_str());
      if (in6.sin6_scope_id == 0) in6.sin6_scope_id = parse_decimal(zone, UINT32_MAX).value_or(0);
      if (in6.sin6_scope_id == 0) return bad(to_string(), "this host has no interface '" + zone + "'");
    }
    std::memcpy(out, &in6, sizeof(in6));
    return socklen_t{sizeof(in6)};
  }
  if (host_.empty()) return {Code::kInvalidArgument, "an unnamed unix socket has no address to connect to"};
  sockaddr_un un{};
  un.sun_family = AF_UNIX;
  std::memcpy(un.sun_path, host_.data(), host_.size());
  const bool abstract = host_[0] == '@';
  if (abstract) un.sun_path[0] = '\0';
  std::memcpy(out, &un, sizeof(un));
  return static_cast<socklen_t>(kUnixHeaderBytes + host_.size() + (abstract ? 0 : 1));
}

}  // namespace kvferry
