#include "base/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <thread>

#include "base/deadline.h"
#include "base/limits.h"
#include "base/random.h"

namespace kvferry {
namespace {

Wait soon(int ms = 5000) { return {deadline_in(milliseconds(ms)), nullptr}; }

std::string unique_name() { return "unix:@kvferry-test-" + std::to_string(random_u64()); }

struct Pair {
  UniqueFd a, b;
};

Pair connected(const std::string& bind) {
  const auto listener = listen_on(*Endpoint::parse(bind), 8);
  EXPECT_TRUE(listener.ok()) << listener.status().to_string();
  const auto address = local_endpoint(listener->get());
  EXPECT_TRUE(address.ok()) << address.status().to_string();
  auto client = connect_to(*address, soon());
  EXPECT_TRUE(client.ok()) << client.status().to_string();
  auto server = accept_from(listener->get(), soon());
  EXPECT_TRUE(server.ok()) << server.status().to_string();
  return {std::move(client).value(), std::move(server->fd)};
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

class SocketFamilies : public testing::TestWithParam<const char*> {};

TEST_P(SocketFamilies, BytesArriveWholeAndInOrder) {
  const std::string bind = std::string(GetParam()) == "unix" ? unique_name() : GetParam();
  Pair pair = connected(bind);
  Bytes sent(3u << 20);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7 >> 3);
  std::jthread sender([&] { EXPECT_TRUE(send_all(pair.a.get(), sent, soon()).ok()); });
  Bytes got(sent.size());
  EXPECT_TRUE(recv_exact(pair.b.get(), got, soon()).ok());
  EXPECT_EQ(got, sent);
}

INSTANTIATE_TEST_SUITE_P(All, SocketFamilies, testing::Values("127.0.0.1:0", "[::1]:0", "unix"));

TEST(Socket, VectoredBeyondIovMaxWithEmptySegments) {
  Pair pair = connected("127.0.0.1:0");
  std::vector<std::uint32_t> sent(5000);
  std::iota(sent.begin(), sent.end(), 0);
  std::vector<std::uint32_t> got(sent.size());
  std::vector<iovec> out, in;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    out.push_back({&sent[i], sizeof(sent[i])});
    if (i % 10 == 0) out.push_back({nullptr, 0});
  }
  for (std::size_t i = 0; i < got.size(); i += 4) in.push_back({&got[i], 4 * sizeof(got[i])});
  std::jthread sender([&] { EXPECT_TRUE(send_vectored(pair.a.get(), out, soon()).ok()); });
  EXPECT_TRUE(recv_vectored(pair.b.get(), in, soon()).ok());
  EXPECT_EQ(got, sent);
}

TEST(Socket, NothingToMoveIsDoneAtOnce) {
  Pair pair = connected("127.0.0.1:0");
  EXPECT_TRUE(send_all(pair.a.get(), {}, soon(0)).ok());
  EXPECT_TRUE(recv_exact(pair.a.get(), {}, soon(0)).ok());
}

TEST(Socket, SilentPeerMeetsTheDeadline) {
  Pair pair = connected("127.0.0.1:0");
  Bytes bytes(10);
  ASSERT_TRUE(send_all(pair.b.get(), Bytes(4), soon()).ok());
  const auto start = Clock::now();
  const Status status = recv_exact(pair.a.get(), bytes, soon(50));
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  for (const std::string& words : {std::string("receiving stopped after 4 of 10 bytes"),
                                   "nothing came from " + local_endpoint(pair.b.get())->to_string() + " for ",
                                   std::string(" ms, until the time allowed was up: look whether it is stopped")}) {
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  }
  EXPECT_GE(Clock::now() - start, milliseconds(50));
  EXPECT_LT(Clock::now() - start, milliseconds(10000));
}

TEST(Socket, FullPeerMeetsTheDeadline) {
  Pair pair = connected("127.0.0.1:0");
  EXPECT_EQ(send_all(pair.a.get(), Bytes(64u << 20), soon(50)).code(), Code::kDeadlineExceeded);
}

TEST(Socket, ClosedPeerIsLostAndRaisesNoSignal) {
  Pair pair = connected("127.0.0.1:0");
  EXPECT_FALSE(is_hung_up(pair.a.get()));
  pair.b.reset();
  Bytes bytes(10);
  EXPECT_EQ(recv_exact(pair.a.get(), bytes, soon()).code(), Code::kPeerLost);
  EXPECT_TRUE(is_hung_up(pair.a.get()));
  Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) status = send_all(pair.a.get(), Bytes(1u << 20), soon());
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.to_string();
}

TEST(Socket, InterruptEndsAWaitAndCanBeCleared) {
  Pair pair = connected("127.0.0.1:0");
  const auto interrupt = Interrupt::create();
  ASSERT_TRUE(interrupt.ok());
  std::jthread other([&] {
    std::this_thread::sleep_for(milliseconds(30));
    interrupt->set();
  });
  Bytes bytes(1);
  const Status status = recv_exact(pair.a.get(), bytes, {deadline_in(milliseconds(5000)), &*interrupt});
  EXPECT_EQ(status.code(), Code::kCancelled) << status.to_string();
  EXPECT_TRUE(interrupt->is_set());
  interrupt->clear();
  EXPECT_FALSE(interrupt->is_set());
  EXPECT_EQ(recv_exact(pair.a.get(), bytes, {deadline_in(milliseconds(10)), &*interrupt}).code(),
            Code::kDeadlineExceeded);
}

TEST(Socket, ShutDownWakesAReader) {
  Pair pair = connected("127.0.0.1:0");
  std::jthread other([&] {
    std::this_thread::sleep_for(milliseconds(30));
    shut_down(pair.a.get());
  });
  Bytes bytes(1);
  EXPECT_EQ(recv_exact(pair.a.get(), bytes, soon()).code(), Code::kPeerLost);
}

TEST(Socket, RefusedConnectionNamesTheEndpoint) {
  Endpoint free;
  {
    const auto listener = listen_on(*Endpoint::parse("127.0.0.1:0"), 1);
    free = *local_endpoint(listener->get());
  }
  const auto status = connect_to(free, soon()).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find(free.to_string()), std::string::npos) << status.message();
  EXPECT_EQ(connect_to(*Endpoint::parse(unique_name()), soon()).status().code(), Code::kUnavailable);
}

TEST(Socket, ConnectNeverMeetsItself) {
  // The kernel gives an ephemeral source port; asking for a free port in that range again and again must never succeed.
  const auto listener = listen_on(*Endpoint::parse("127.0.0.1:0"), 1);
  const Endpoint near = *local_endpoint(listener->get());
  for (int i = 1; i <= 2000; ++i) {
    const auto port = static_cast<std::uint16_t>(near.port() + i > 65535 ? 32768 + i : near.port() + i);
    const auto fd = connect_to(near.with_port(port), soon());
    if (!fd.ok()) continue;
    EXPECT_NE(local_endpoint(fd->get())->port(), port) << "connected to itself";
  }
}

TEST(Socket, FullUnixBacklogMeetsTheDeadline) {
  const Endpoint name = *Endpoint::parse(unique_name());
  const auto listener = listen_on(name, 0);
  std::vector<UniqueFd> queued;
  Status status;
  for (int i = 0; i < 8 && status.ok(); ++i) {
    auto fd = connect_to(name, soon(40));
    status = fd.status();
    if (fd.ok()) queued.push_back(std::move(fd).value());
  }
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.to_string();
}

TEST(Socket, BoundPortIsTaken) {
  const auto listener = listen_on(*Endpoint::parse("127.0.0.1:0"), 1);
  EXPECT_EQ(listen_on(*local_endpoint(listener->get()), 1).status().code(), Code::kUnavailable);
}

TEST(Socket, Ipv6WildcardTakesIpv4) {
  const auto listener = listen_on(*Endpoint::parse("[::]:0"), 4);
  ASSERT_TRUE(listener.ok());
  const auto port = local_endpoint(listener->get())->port();
  EXPECT_TRUE(connect_to(Endpoint::parse("127.0.0.1:0")->with_port(port), soon()).ok());
  EXPECT_EQ(accept_from(listener->get(), soon())->remote.to_string().substr(0, 18), "[::ffff:127.0.0.1]");
}

TEST(Socket, AcceptMeetsTheDeadline) {
  const auto listener = listen_on(*Endpoint::parse("127.0.0.1:0"), 1);
  EXPECT_EQ(accept_from(listener->get(), soon(20)).status().code(), Code::kDeadlineExceeded);
}

TEST(Socket, UnnamedUnixPeerIsAcceptedWithCredentials) {
  const Endpoint name = *Endpoint::parse(unique_name());
  const auto listener = listen_on(name, 1);
  const auto client = connect_to(name, soon());
  const auto server = accept_from(listener->get(), soon());
  ASSERT_TRUE(server.ok()) << server.status().to_string();
  EXPECT_EQ(server->remote.family(), Endpoint::Family::kUnix);
  EXPECT_EQ(server->remote.host(), "");
  const auto credentials = peer_credentials(server->fd.get());
  ASSERT_TRUE(credentials.ok());
  EXPECT_EQ(credentials->pid, ::getpid());
  EXPECT_EQ(credentials->uid, ::getuid());
}

TEST(Socket, DescriptorsTravelAndAreCloseOnExec) {
  Pair pair = connected(unique_name());
  const UniqueFd memory(::memfd_create("kvferry-test", MFD_CLOEXEC));
  ASSERT_EQ(::write(memory.get(), "hello", 5), 5);
  const int fds[2] = {memory.get(), memory.get()};
  Bytes sent(200000, std::byte{9});  // more than a unix socket takes at once
  std::jthread sender([&] { EXPECT_TRUE(send_with_fds(pair.a.get(), sent, fds, soon()).ok()); });
  Bytes got(sent.size());
  const auto arrived = recv_with_fds(pair.b.get(), got, 2, soon());
  ASSERT_TRUE(arrived.ok()) << arrived.status().to_string();
  ASSERT_EQ(arrived->size(), 2U);
  EXPECT_EQ(got, sent);
  char text[5] = {};
  EXPECT_EQ(::pread((*arrived)[1].get(), text, 5, 0), 5);
  EXPECT_EQ(std::string(text, 5), "hello");
  EXPECT_NE(::fcntl((*arrived)[0].get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Socket, UnwantedDescriptorsAreRefusedAndNotLeaked) {
  Pair pair = connected(unique_name());
  const std::size_t before = open_descriptors();
  const std::vector<int> fds(kMaxFdsPerFrame, pair.a.get());
  ASSERT_TRUE(send_with_fds(pair.a.get(), Bytes(1), fds, soon()).ok());
  Bytes got(1);
  EXPECT_EQ(recv_with_fds(pair.b.get(), got, 1, soon()).status().code(), Code::kProtocolError);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Socket, DescriptorsWithoutAByteAreAMistake) {
  Pair pair = connected(unique_name());
  const int fd = pair.a.get();
  EXPECT_EQ(send_with_fds(fd, {}, {&fd, 1}, soon()).code(), Code::kInternal);
  EXPECT_EQ(send_with_fds(fd, Bytes(1), {}, soon()).code(), Code::kInternal);
}

TEST(Socket, UnknownCongestionControlIsUnsupported) {
  Pair pair = connected("127.0.0.1:0");
  EXPECT_EQ(set_congestion_control(pair.a.get(), "no-such-thing").code(), Code::kUnsupported);
}

TEST(UniqueFd, MovesAndCloses) {
  UniqueFd first(::memfd_create("kvferry-test", MFD_CLOEXEC));
  const int number = first.get();
  UniqueFd second(std::move(first));
  EXPECT_FALSE(first.valid());  // NOLINT(bugprone-use-after-move): the moved-from state is defined
  EXPECT_EQ(second.get(), number);
  second.reset();
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
}

}  // namespace
}  // namespace kvferry
