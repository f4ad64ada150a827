// A peer made by hand, for tests that send what no engine would.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/socket.h"
#include "engine_fixture.h"
#include "transport/greeting.h"
#include "wire/channel.h"
#include "wire/frame.h"

namespace kvferry::testing {

inline Wait patience() { return Wait{deadline_in(kPatience)}; }

inline UniqueFd dial(const Engine& engine) {
  auto fd = connect_to(engine.endpoint(), patience());
  EXPECT_TRUE(fd.ok()) << fd.status().to_string();
  return fd.ok() ? std::move(fd).value() : UniqueFd();
}

inline std::uint64_t dropped(const Engine& engine, const std::string& reason) {
  return engine.counters()["dropped_connections_" + reason + "_total"];
}

// True once the engine closes its end.
inline bool is_closed(const UniqueFd& fd, milliseconds timeout = kPatience) {
  std::array<std::byte, 4096> bytes;
  const Wait wait{deadline_in(timeout)};
  while (wait_for(fd.get(), POLLIN, wait).ok()) {
    if (::read(fd.get(), bytes.data(), bytes.size()) <= 0) return true;
  }
  return false;
}

// A request of the data connection that the initiator numbered 1.
constexpr std::uint64_t request_id(std::uint32_t number) { return std::uint64_t{1} << 32 | number; }

// A peer made by hand: it passes the handshakes and then sends what the test wants.
class RawPeer {
 public:
  explicit RawPeer(const Engine& engine) : engine_(engine) {
    node_.id = NodeId::random();
    node_.endpoint = "127.0.0.1:1";
    control_ = open(wire::Purpose::kControl);
    auto regions = recv_frame(control_.get(), patience());
    EXPECT_TRUE(regions.ok());
    if (regions.ok()) regions_ = wire::Regions::decode(regions->body)->regions;
  }
  UniqueFd open(wire::Purpose purpose) {
    Channel channel(dial(engine_));
    const auto ack = greet(channel, node_, engine_.node_id(), purpose, patience());
    EXPECT_TRUE(ack.ok()) << ack.status().to_string();
    return channel.take_fd();
  }
  const UniqueFd& control() const { return control_; }
  const std::vector<RegionInfo>& regions() const { return regions_; }

 private:
  const Engine& engine_;
  LocalNode node_;
  UniqueFd control_;
  std::vector<RegionInfo> regions_;
};

}  // namespace kvferry::testing
