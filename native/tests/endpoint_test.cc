#include "kvferry/endpoint.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <random>
#include <string>
#include <vector>

namespace kvferry {
namespace {

std::string error_of(std::string_view text) {
  const auto endpoint = Endpoint::parse(text);
  return endpoint.ok() ? "parsed as " + endpoint->to_string() : endpoint.status().message();
}

void expect_round_trip(const std::string& text) {
  const auto endpoint = Endpoint::parse(text);
  ASSERT_TRUE(endpoint.ok()) << error_of(text);
  const std::string written = endpoint->to_string();
  const auto again = Endpoint::parse(written);
  ASSERT_TRUE(again.ok()) << written;
  EXPECT_EQ(*again, *endpoint) << text;
  EXPECT_EQ(again->to_string(), written);
  sockaddr_storage storage{};
  const auto length = endpoint->to_sockaddr(&storage);
  ASSERT_TRUE(length.ok()) << length.status().to_string();
  const auto back = Endpoint::from_sockaddr(reinterpret_cast<const sockaddr*>(&storage), *length);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->to_string(), written);
}

TEST(Endpoint, CanonicalFormsAreKept) {
  for (const std::string text :
       {"127.0.0.1:8000", "0.0.0.0:0", "255.255.255.255:65535", "[::1]:8000", "[::]:0", "[fe80::1%lo]:8000",
        "[::ffff:127.0.0.1]:80", "[2001:db8::a]:1", "unix:/run/kvf.sock", "unix:@name", "unix:@a b"}) {
    EXPECT_EQ(Endpoint::parse(text)->to_string(), text);
    expect_round_trip(text);
  }
}

TEST(Endpoint, OtherSpellingsBecomeCanonical) {
  EXPECT_EQ(Endpoint::parse("localhost:80")->to_string(), "127.0.0.1:80");
  EXPECT_EQ(Endpoint::parse("[0:0:0:0:0:0:0:1]:80")->to_string(), "[::1]:80");
  EXPECT_EQ(Endpoint::parse("[2001:DB8::00A]:80")->to_string(), "[2001:db8::a]:80");
}

TEST(Endpoint, BareIpv6IsRefusedWithTheBracketedForm) {
  EXPECT_NE(error_of("::1:8000").find("[::1]:8000"), std::string::npos) << error_of("::1:8000");
  EXPECT_NE(error_of("fe80::1%eth0:80").find("[fe80::1%eth0]:80"), std::string::npos);
}

TEST(Endpoint, MalformedTextIsRefused) {
  const std::string nul("unix:@a\0b", 9);
  for (const std::string& text : std::vector<std::string>{"",
                                                          ":",
                                                          "127.0.0.1",
                                                          "127.0.0.1:",
                                                          "127.0.0.1:x",
                                                          "127.0.0.1:65536",
                                                          "127.0.0.1:-1",
                                                          "127.0.0.1:+1",
                                                          "127.0.0.1: 1",
                                                          "127.0.0.1:080",
                                                          "127.0.0.1:99999999999",
                                                          "127.1:80",
                                                          "0x7f.0.0.1:80",
                                                          "host:80",
                                                          ":80",
                                                          "[::1]",
                                                          "[::1",
                                                          "[::1]80",
                                                          "[::1]:",
                                                          "[]:80",
                                                          "[127.0.0.1]:80",
                                                          "[::1%]:80",
                                                          "[::1%a%b]:80",
                                                          "[%lo]:80",
                                                          "[::1%0123456789abcdef]:80",
                                                          "unix:",
                                                          "unix:@",
                                                          "unix:/",
                                                          "unix:relative",
                                                          nul,
                                                          "unix:/" + std::string(107, 'x'),
                                                          std::string("127.0.0.1\0:80", 13)}) {
    EXPECT_FALSE(Endpoint::parse(text).ok()) << error_of(text);
  }
}

TEST(Endpoint, HostileTextIsNotEchoedRaw) {
  const std::string message = error_of("\x1b[31m" + std::string(1000, 'x'));
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_LT(message.size(), 400U);
}

TEST(Endpoint, RandomAddressesRoundTrip) {
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    sockaddr_in6 in6{};
    in6.sin6_family = AF_INET6;
    in6.sin6_port = static_cast<in_port_t>(random());
    // Sparse bytes, so that "::", mapped and compatible forms all occur.
    for (auto& byte : in6.sin6_addr.s6_addr) byte = random() % 3 == 0 ? static_cast<std::uint8_t>(random()) : 0;
    if (i % 5 == 0) std::fill_n(in6.sin6_addr.s6_addr, 10, 0), std::fill_n(in6.sin6_addr.s6_addr + 10, 2, 0xff);
    const auto v6 = Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&in6), sizeof(in6));
    ASSERT_TRUE(v6.ok());
    expect_round_trip(v6->to_string());
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = static_cast<in_port_t>(random());
    in.sin_addr.s_addr = static_cast<in_addr_t>(random());
    const auto v4 = Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&in), sizeof(in));
    ASSERT_TRUE(v4.ok());
    expect_round_trip(v4->to_string());
  }
}

TEST(Endpoint, RandomUnixNamesRoundTrip) {
  std::mt19937 random(8);
  for (int i = 0; i < 1000; ++i) {
    std::string name(1 + random() % 100, ' ');
    for (char& c : name) c = static_cast<char>(1 + random() % 255);
    expect_round_trip((i % 2 == 0 ? "unix:@" : "unix:/") + name);
  }
}

TEST(Endpoint, LoopbackAndWildcard) {
  for (const char* text : {"127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "unix:@x", "unix:/x"}) {
    EXPECT_TRUE(Endpoint::parse(text)->is_loopback()) << text;
    EXPECT_FALSE(Endpoint::parse(text)->is_wildcard()) << text;
  }
  for (const char* text : {"0.0.0.0:1", "[::]:1", "[::ffff:0.0.0.0]:1"}) {
    EXPECT_TRUE(Endpoint::parse(text)->is_wildcard()) << text;
    EXPECT_FALSE(Endpoint::parse(text)->is_loopback()) << text;
  }
  for (const char* text : {"128.0.0.1:1", "[fe80::1%lo]:1", "[::2]:1", "[::ffff:10.0.0.1]:1"}) {
    EXPECT_FALSE(Endpoint::parse(text)->is_loopback()) << text;
    EXPECT_FALSE(Endpoint::parse(text)->is_wildcard()) << text;
  }
}

TEST(Endpoint, UnknownZoneIsNamed) {
  sockaddr_storage storage{};
  const auto length = Endpoint::parse("[fe80::1%nosuchif]:1")->to_sockaddr(&storage);
  EXPECT_EQ(length.status().code(), Code::kInvalidArgument);
  EXPECT_NE(length.status().message().find("nosuchif"), std::string::npos);
}

TEST(Endpoint, ForeignOrCutSocketAddressesAreRefused) {
  sockaddr_storage storage{};
  auto* const address = reinterpret_cast<sockaddr*>(&storage);
  for (const int family : {AF_INET, AF_INET6, AF_NETLINK, AF_UNSPEC}) {
    storage.ss_family = static_cast<sa_family_t>(family);
    EXPECT_FALSE(Endpoint::from_sockaddr(address, sizeof(sa_family_t)).ok()) << family;
  }
  EXPECT_FALSE(Endpoint::from_sockaddr(nullptr, 0).ok());
}

TEST(Endpoint, WithPortChangesOnlyThePort) {
  EXPECT_EQ(Endpoint::parse("[::1]:0")->with_port(77).to_string(), "[::1]:77");
  EXPECT_EQ(Endpoint::parse("unix:@x")->with_port(77), *Endpoint::parse("unix:@x"));
}

}  // namespace
}  // namespace kvferry
