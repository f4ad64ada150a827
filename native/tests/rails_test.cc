// Several addresses as rails: how they are chosen, paired and told, and that all of them carry data.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/subnet.h"
#include "engine/local_rails.h"
#include "engine_fixture.h"
#include "transport/tcp/rail_pairs.h"

namespace kvferry {
namespace {

using namespace kvferry::testing;

// ---- pairs

LocalRail our(const char* endpoint, unsigned prefix_length, std::uint32_t speed_mbit = 0) {
  return {*Endpoint::parse(endpoint), speed_mbit, prefix_length, -1, ""};
}
PeerRail their(const char* endpoint, std::uint32_t speed_mbit = 0) { return {*Endpoint::parse(endpoint), speed_mbit}; }

std::vector<std::string> names(const std::vector<Path>& paths) {
  std::vector<std::string> out;
  for (const Path& path : paths) out.push_back(path.name);
  return out;
}

const Endpoint kMain = *Endpoint::parse("10.9.9.9:900");

TEST(Pairs, WithoutRailsThereIsTheEndpointAlone) {
  const std::vector<Path> paths = pair_rails({}, {}, kMain);
  ASSERT_EQ(paths.size(), 1u);
  EXPECT_EQ(paths[0].name, "");
  EXPECT_FALSE(paths[0].from);
  EXPECT_EQ(paths[0].to, kMain);
}

TEST(Pairs, EachAddressIsUsedOnceAndNetworksAreNotMixed) {
  const std::vector<LocalRail> ours{our("10.0.1.1:1", 24), our("10.0.2.1:1", 24)};
  const std::vector<PeerRail> theirs{their("10.0.2.2:7"), their("10.0.1.2:8")};
  EXPECT_EQ(names(pair_rails(ours, theirs, kMain)),
            (std::vector<std::string>{"10.0.1.1 to 10.0.1.2:8", "10.0.2.1 to 10.0.2.2:7"}));
  EXPECT_EQ(pair_rails(ours, theirs, kMain)[0].from->port(), 0);
}

TEST(Pairs, InOneNetworkTheFasterOnesComeFirst) {
  const std::vector<LocalRail> ours{our("10.0.0.1:1", 24, 25000), our("10.0.0.2:1", 24, 100000)};
  const std::vector<PeerRail> theirs{their("10.0.0.3:7", 25000), their("10.0.0.4:8", 100000)};
  EXPECT_EQ(names(pair_rails(ours, theirs, kMain)),
            (std::vector<std::string>{"10.0.0.2 to 10.0.0.4:8", "10.0.0.1 to 10.0.0.3:7"}));
}

TEST(Pairs, RoutedNetworksAndUnequalNumbersUseEveryAddress) {
  const std::vector<LocalRail> ours{our("10.0.1.1:1", 31), our("10.0.2.1:1", 31)};
  EXPECT_EQ(names(pair_rails(ours, {their("10.1.0.2:7")}, kMain)),
            (std::vector<std::string>{"10.0.1.1 to 10.1.0.2:7", "10.0.2.1 to 10.1.0.2:7"}));
  EXPECT_EQ(names(pair_rails(ours, {}, kMain)),
            (std::vector<std::string>{"10.0.1.1 to 10.9.9.9:900", "10.0.2.1 to 10.9.9.9:900"}));
  EXPECT_EQ(names(pair_rails({}, {their("10.1.0.2:7"), their("[fd00::2]:8")}, kMain)),
            (std::vector<std::string>{"to 10.1.0.2:7", "to [fd00::2]:8"}));
}

TEST(Pairs, OtherFamiliesAndLoopbackWithARealAddressDoNotPair) {
  const std::vector<Path> paths =
      pair_rails({our("127.0.0.2:1", 8), our("[fd00::1]:1", 64)}, {their("10.0.0.2:7")}, kMain);
  EXPECT_EQ(names(paths), std::vector<std::string>{""});
}

TEST(Subnet, ComparesBitsOfOneFamily) {
  EXPECT_TRUE(same_subnet("10.0.0.1", "10.0.0.254", 24));
  EXPECT_FALSE(same_subnet("10.0.0.1", "10.0.1.1", 24));
  EXPECT_TRUE(same_subnet("10.0.0.4", "10.0.0.5", 31));
  EXPECT_FALSE(same_subnet("10.0.0.5", "10.0.0.6", 31));
  EXPECT_TRUE(same_subnet("fe80::1%eth0", "fe80::2%eth7", 64));
  EXPECT_FALSE(same_subnet("10.0.0.1", "::1", 0));
  EXPECT_FALSE(same_subnet("10.0.0.1", "10.0.0.1", 0));
}

// ---- options

Topology machine() {
  Topology out;
  Nic lo;
  lo.name = "lo";
  lo.loopback = true;
  lo.addresses = {{"127.0.0.1", 8}, {"::1", 128}};
  Nic eth0;
  eth0.name = "eth0";
  eth0.speed_mbit = 100000;
  eth0.numa_node = 0;
  eth0.addresses = {{"10.0.0.1", 24}, {"fe80::1%eth0", 64}, {"fd00::1", 64}};
  Nic eth1 = eth0;
  eth1.name = "eth1";
  eth1.numa_node = 1;
  eth1.addresses = {{"10.0.1.1", 24}};
  out.nics = {eth0, eth1, lo};
  return out;
}

EngineOptions with_rails(std::vector<std::string> rails, std::vector<std::string> device = {}) {
  EngineOptions options;
  options.rails = std::move(rails);
  options.device = std::move(device);
  options.cluster_secret = "sixteen bytes or more";
  return options;
}

std::vector<std::string> chosen(const EngineOptions& options, const char* bind = "10.0.0.1:0") {
  const auto rails = local_rails(options, *Endpoint::parse(bind), machine());
  if (!rails.ok()) return {rails.status().message()};
  std::vector<std::string> out;
  for (const LocalRail& rail : *rails) {
    out.push_back(rail.nic + " " + rail.endpoint.host() + "/" + std::to_string(rail.prefix_length));
  }
  return out;
}

TEST(LocalRails, AreNamedByAddressOrInterface) {
  EXPECT_EQ(chosen(with_rails({"10.0.0.1", "eth1"})),
            (std::vector<std::string>{"eth0 10.0.0.1/24", "eth1 10.0.1.1/24"}));
  EXPECT_EQ(chosen(with_rails({"eth0"}), "[fd00::1]:0"), std::vector<std::string>{"eth0 fd00::1/64"});
  EXPECT_EQ(chosen(with_rails({"127.0.0.2"})), std::vector<std::string>{"lo 127.0.0.2/8"});
  EXPECT_EQ(chosen(with_rails({}, {"eth1"})), std::vector<std::string>{"eth1 10.0.1.1/24"});
}

TEST(LocalRails, OfThePreferredNodeComeFirst) {
  EngineOptions options = with_rails({"eth0", "eth1"});
  options.preferred_numa_node = 1;
  EXPECT_EQ(chosen(options).front(), "eth1 10.0.1.1/24");
  options.numa_aware = false;
  EXPECT_EQ(chosen(options).front(), "eth0 10.0.0.1/24");
}

TEST(LocalRails, ThatCannotBeAreRefusedWithTheReason) {
  const auto refusal = [](const EngineOptions& options, const char* bind = "10.0.0.1:0") {
    return chosen(options, bind).at(0);
  };
  EXPECT_EQ(refusal(with_rails({"eth7"})), "rails: 'eth7' is neither an interface of this host nor an IP address");
  EXPECT_EQ(refusal(with_rails({"10.0.0.9"})), "rails: no interface of this host has the address 10.0.0.9");
  EXPECT_EQ(refusal(with_rails({"0.0.0.0"})), "rails: no interface of this host has the address 0.0.0.0");
  EXPECT_EQ(refusal(with_rails({"eth0", "10.0.0.1"})), "rails: 10.0.0.1 is listed twice");
  EXPECT_EQ(refusal(with_rails({"eth0"}, {"eth1"})),
            "rails: 10.0.0.1 is on interface eth0, which is not among `device`");
  EXPECT_EQ(refusal(with_rails({}, {"eth7"})), "device: 'eth7' is neither an interface of this host nor an IP address");
  EXPECT_EQ(refusal(with_rails({"eth1"}), "[fd00::1]:0"),
            "rails: interface eth1 has no IPv6 address; give one, or name another interface");
  EXPECT_EQ(refusal(with_rails(std::vector<std::string>(9, "eth0"))), "rails: 9 are given; at most 8 are possible");
  EngineOptions open = with_rails({"eth0"});
  open.cluster_secret.clear();
  EXPECT_EQ(refusal(open), "rails: 10.0.0.1 is reachable from other hosts: set cluster_secret (at least 16 bytes)");
}

// ---- engines

EngineOptions tcp_over(std::vector<std::string> rails) {
  EngineOptions options = options_for({"tcp"});
  options.rails = std::move(rails);
  options.tcp_streams = 1;
  return options;
}

// A peer with rails, and repeated reads of its memory.
class Rails : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kLength = 8u << 20;

  void connect(const EngineOptions& ours, const EngineOptions& theirs) {
    owner_ = make_engine(theirs);
    user_ = make_engine(ours);
    ASSERT_TRUE(owner_ && user_);
    source_.resize(kLength);
    target_.resize(kLength);
    fill(source_, 1);
    const auto remote = owner_->register_memory(source_.data(), kLength, "source", kRemoteRead, MemoryKind::kHost);
    const auto local = user_->register_memory(target_.data(), kLength, "target", kRemoteRead, MemoryKind::kHost);
    ASSERT_OK(remote.status());
    ASSERT_OK(local.status());
    const auto peer = user_->connect(owner_->endpoint(), owner_->node_id(), kPatience);
    ASSERT_OK(peer.status());
    peer_ = *peer;
    std::vector<Piece> pieces;
    for (std::uint64_t at = 0; at < kLength; at += 65536) {
      pieces.push_back({local->key.id, remote->key.id, at, kLength - 65536 - at, 65536});
    }
    const auto plan = user_->prepare(peer_, pieces, Op::kRead);
    ASSERT_OK(plan.status());
    plan_ = *plan;
  }

  Status read() {
    const auto transfer = user_->submit(plan_, {});
    if (!transfer.ok()) return transfer.status();
    EXPECT_TRUE((*transfer)->wait(kPatience));
    return (*transfer)->status();
  }
  // Reads until `done`, at most for the patience of the tests. Every read must succeed.
  template <typename Done>
  bool read_until(Done done) {
    const Clock::time_point end = Clock::now() + kPatience;
    do {
      const Status status = read();
      EXPECT_TRUE(status.ok()) << status.to_string();
      if (!status.ok() || done()) return status.ok();
    } while (Clock::now() < end);
    return false;
  }
  RailStats rail(std::size_t i) const { return peer_->stats().rails.at(i); }

  std::unique_ptr<Engine> owner_, user_;
  std::vector<std::byte> source_, target_;
  std::shared_ptr<Peer> peer_;
  std::shared_ptr<const Plan> plan_;
};

TEST_F(Rails, AllCarryData) {
  connect(tcp_over({"127.0.0.2", "127.0.0.3"}), tcp_over({"127.0.0.2", "127.0.0.3"}));
  ASSERT_EQ(peer_->stats().rails.size(), 2u);
  EXPECT_TRUE(rail(0).name.starts_with("tcp 127.0.0.2 to 127.0.0.2:")) << rail(0).name;
  EXPECT_TRUE(rail(1).name.starts_with("tcp 127.0.0.3 to 127.0.0.3:")) << rail(1).name;
  EXPECT_TRUE(read_until([&] { return rail(0).bytes > 0 && rail(1).bytes > 0; }));
  EXPECT_EQ(rail(0).lanes, 1u);
  EXPECT_EQ(rail(1).lanes, 1u);
  EXPECT_EQ(peer_->transport_note(), "tcp: first choice, 2 rails");
  for (std::uint64_t at = 0; at < kLength; at += 65536) {
    EXPECT_EQ(std::memcmp(&target_[at], &source_[kLength - 65536 - at], 65536), 0) << at;
  }
}

TEST_F(Rails, OneSideAloneMayHaveThem) {
  connect(tcp_over({}), tcp_over({"127.0.0.2", "127.0.0.3"}));
  EXPECT_TRUE(read_until([&] { return rail(0).bytes > 0 && rail(1).bytes > 0; }));
  connect(tcp_over({"127.0.0.2", "127.0.0.3"}), tcp_over({}));
  EXPECT_TRUE(read_until([&] { return rail(0).bytes > 0 && rail(1).bytes > 0; }));
}

TEST_F(Rails, ThatTheMainListenerServesShareItsPort) {
  EngineOptions theirs = tcp_over({"127.0.0.1", "127.0.0.2"});
  connect(tcp_over({}), theirs);
  const std::string port = std::to_string(owner_->endpoint().port());
  EXPECT_EQ(rail(0).name, "tcp to 127.0.0.1:" + port);
  EXPECT_NE(rail(1).name, "tcp to 127.0.0.2:" + port);
  EXPECT_OK(read());
}

TEST(RailOptions, ThatCannotBeStartNoEngine) {
  const auto engine = Engine::create(tcp_over({"no-such-interface"}));
  EXPECT_EQ(engine.status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(engine.status().message().starts_with("rails: ")) << engine.status().message();
}

}  // namespace
}  // namespace kvferry
