// Who may touch what, and until when: memory after unregister and close, rails after a cancel, engines after fork().
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <thread>

#include "base/deadline.h"
#include "child_process.h"
#include "engine_fixture.h"
#include "process_state.h"
#include "proxy.h"
#include "transport/shm/attachment.h"
#include "transport/shm/copy_permission.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace kvferry::testing {
namespace {

constexpr std::uint64_t kBig = 96u << 20;  // long enough that a test can act while it is copied

// Two engines in one process, joined by shm, whose slices are so large that a transfer is one copy by the kernel.
struct Pair {
  Pair() {
    EngineOptions options = options_for({"shm"});
    options.slice_bytes = kBig;
    near = make_engine(options);
    far = make_engine(options);
    near_region = share(*near, near_bytes);
    far_region = share(*far, far_bytes);
    peer = connect(*near, *far);
  }
  static RegionInfo share(Engine& engine, std::vector<std::byte>& bytes) {
    auto region =
        engine.register_memory(bytes.data(), bytes.size(), "big", kRemoteRead | kRemoteWrite, MemoryKind::kHost);
    EXPECT_TRUE(region.ok()) << region.status().to_string();
    return region.ok() ? *region : RegionInfo{};
  }
  Piece everything() const { return {near_region.key.id, far_region.key.id, 0, 0, kBig}; }
  // Starts to move everything and returns when the first bytes have arrived in `target`.
  std::shared_ptr<Transfer> start_and_await_first_byte(Op op, std::vector<std::byte>& target,
                                                       SubmitOptions options = {}) {
    auto transfer = start(*near, peer, {everything()}, op, std::move(options));
    if (!transfer.ok()) return nullptr;
    const std::byte before = target.front();
    const std::atomic_ref<std::byte> first(target.front());
    while (first.load() == before && !(*transfer)->settled()) std::this_thread::yield();
    return *transfer;
  }

  std::vector<std::byte> near_bytes = std::vector<std::byte>(kBig, std::byte{0x11});
  std::vector<std::byte> far_bytes = std::vector<std::byte>(kBig, std::byte{0x22});
  RegionInfo near_region, far_region;
  std::unique_ptr<Engine> near, far;
  std::shared_ptr<Peer> peer;
};

// The owner's end of an attachment ends with the control connection; a copy by the peer does not.
void expect_no_late_copy(const std::function<void(Pair&)>& take_back) {
  for (int round = 0; round < 3; ++round) {
    Pair pair;
    const auto transfer = pair.start_and_await_first_byte(Op::kWrite, pair.far_bytes);
    ASSERT_TRUE(transfer);
    take_back(pair);
    const auto tail = std::span(pair.far_bytes).last(kBig / 2);
    std::memset(tail.data(), 0x33, 4096);
    std::memset(&tail.back() - 4095, 0x33, 4096);
    ASSERT_TRUE(transfer->wait(kPatience));
    EXPECT_EQ(tail.front(), std::byte{0x33}) << "a peer wrote to memory that was not ours to write any more";
    EXPECT_EQ(tail.back(), std::byte{0x33}) << "a peer wrote to memory that was not ours to write any more";
  }
}

TEST(Lifetime, NoCopyByAPeerOutlivesClose) {
  expect_no_late_copy([](Pair& pair) { pair.far->close(); });
}

TEST(Lifetime, NoCopyByAPeerThatWasLeftOutlivesUnregister) {
  expect_no_late_copy([](Pair& pair) {
    for (const auto& peer : pair.far->peers()) peer->close();
    std::this_thread::sleep_for(milliseconds(1));  // the attachment's thread notices
    ASSERT_OK(pair.far->unregister(pair.far_region.key, kPatience));
  });
}

TEST(Lifetime, OthersMayCopyOnlyWhileAPeerIsAttached) {
  EXPECT_EQ(CopyPermission::holders(), 0);
  Pair pair;
  ASSERT_OK(run(*pair.near, pair.peer, {pair.everything()}, Op::kRead));
  EXPECT_GE(CopyPermission::holders(), 1);  // one for each lane that has attached so far
  pair.near->close();
  EXPECT_TRUE(eventually([] { return CopyPermission::holders() == 0; }));
}

LocalNode node_like(const Engine& engine) {  // for rails of our own, in the name of `engine`
  LocalNode node;
  node.id = engine.node_id();
  node.host = HostId::current();
  node.endpoint = "127.0.0.1:1";
  return node;
}

// As if a peer had been stopped in the middle of a copy, for ever.
TEST(Lifetime, APeerThatIsStuckInACopyDelaysCloseForABoundedTime) {
  Pair pair;
  const LocalNode node = node_like(*pair.near);
  const Endpoint name = *Endpoint::parse(shm_name_of(pair.far->node_id()));
  auto stuck = Attachment::open(node, pair.far->node_id(), name, Wait{deadline_in(kPatience)});
  ASSERT_TRUE(stuck.ok()) << stuck.status().to_string();
  stuck->lanes().begin(0);
  EXPECT_EQ(pair.far->unregister(pair.far_region.key, milliseconds(50)).code(), Code::kDeadlineExceeded);
  const auto begin = Clock::now();
  pair.far->close();
  EXPECT_LT(Clock::now() - begin, milliseconds(15000));
  EXPECT_TRUE(stuck->hung_up()) << "the copier must be able to see that it was given up";
}

// An interrupt may come just after the job that it was meant for.
TEST(Lifetime, ACancelOfOneTransferLeavesTheNextAlone) {
  EngineOptions options = options_for({"shm", "tcp"});
  auto near = make_engine(options), far = make_engine(options);
  auto arena = far->allocate(4096, "arena", kRemoteRead);
  ASSERT_TRUE(arena.ok());
  fill({static_cast<std::byte*>(arena->second), 4096}, 5);
  auto peer = connect(*near, *far);
  ASSERT_TRUE(peer);

  const LocalNode node = node_like(*near);
  ShmTransport shm(node, 1);
  TcpTransport tcp(node, TcpOptions{});
  for (Transport* const transport : {static_cast<Transport*>(&shm), static_cast<Transport*>(&tcp)}) {
    PeerContext context;
    context.self = node.id;
    context.node_id = far->node_id();
    context.endpoint = far->endpoint();
    context.shm_name = shm_name_of(far->node_id());
    context.same_host = true;
    context.path.to = context.endpoint;
    auto rail = transport->open_rail(context, deadline_in(kPatience));
    ASSERT_TRUE(rail.ok()) << rail.status().to_string();
    std::vector<std::byte> bytes(4096);
    const std::array<RunOp, 1> runs{RunOp{bytes.data(), arena->first.key, 0, bytes.size()}};
    std::array<Status, 1> results;
    const std::atomic<bool> cancelled{false};
    (*rail)->interrupt();
    EXPECT_OK((*rail)->execute({Op::kRead, runs}, results, deadline_in(kPatience), cancelled));
    EXPECT_OK(results[0]);
    EXPECT_EQ(bytes[4095], pattern(5, 4095));
  }
}

TEST(Lifetime, ATransferIsNotGoodUnlessItsMessageWasSent) {
  Pair pair;
  SubmitOptions options;
  options.notify = "done";
  const auto transfer = pair.start_and_await_first_byte(Op::kWrite, pair.far_bytes, options);
  ASSERT_TRUE(transfer);
  transfer->cancel();  // while the only copy is under way: its bytes arrive all the same
  ASSERT_TRUE(transfer->wait(kPatience));
  const bool told = pair.far->next_message(milliseconds(200)).has_value();
  EXPECT_EQ(transfer->status().ok(), told) << transfer->status().to_string();
}

TEST(Lifetime, PlansAndPeersOfAnotherEngineAreRefused) {
  Pair pair;
  auto plan = pair.near->prepare(pair.peer, std::vector<Piece>{pair.everything()}, Op::kRead);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(pair.far->submit(*plan, {}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(pair.far->prepare(pair.peer, std::vector<Piece>{pair.everything()}, Op::kRead).status().code(),
            Code::kInvalidArgument);
}

std::size_t mappings_of(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(name) != std::string::npos) ++count;
  }
  return count;
}

TEST(Lifetime, ArenasThatTheOwnerTookBackAreUnmapped) {
  Pair pair;
  for (int round = 0; round < 20; ++round) {
    auto arena = pair.far->allocate(1u << 20, "passing-arena", kRemoteRead);
    ASSERT_TRUE(arena.ok());
    ASSERT_OK(pair.peer->refresh(kPatience));
    ASSERT_OK(run(*pair.near, pair.peer, {{pair.near_region.key.id, arena->first.key.id, 0, 0, 4096}}, Op::kRead));
    ASSERT_OK(pair.far->unregister(arena->first.key, kPatience));
  }
  EXPECT_LE(mappings_of("passing-arena"), 1u);
}

// Runs `body` in a child made by fork(), which may take 10 s.
int exit_code_of_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Lifetime, AForkedChildDoesNotDisturbItsParentsEngine) {
  Pair pair;
  auto plan = pair.near->prepare(pair.peer, std::vector<Piece>{pair.everything()}, Op::kRead);
  ASSERT_TRUE(plan.ok());
  ASSERT_OK(run(*pair.near, pair.peer, {pair.everything()}, Op::kRead));
  EXPECT_EQ(exit_code_of_child([&] {
              if (pair.near->submit(*plan, {}).status().code() != Code::kUnsupported) return 1;
              if (pair.near->send(pair.peer->handle(), "x", kPatience).code() != Code::kUnsupported) return 2;
              if (pair.near->unregister(pair.near_region.key, kPatience).code() != Code::kUnsupported) return 3;
              if (pair.near->next_message(kPatience).has_value()) return 4;
              pair.peer->close();
              pair.near->close();
              pair.near.reset();
              return 0;
            }),
            0);
  EXPECT_OK(pair.peer->refresh(kPatience));
  EXPECT_OK(run(*pair.near, pair.peer, {pair.everything()}, Op::kRead));
}

// The rails' interrupts are descriptors, which a child shares with its parent.
TEST(Lifetime, AForkedChildCannotCancelItsParentsTransfers) {
  ChildProcess owner(4096, "foreign", "tcp");
  ASSERT_TRUE(owner.running());
  const auto engine = make_engine(options_for({"tcp"}));
  const Buffer local = register_buffer(*engine, 4096, 1);
  const auto peer = engine->connect(owner.endpoint(), owner.node_id(), kPatience);
  ASSERT_TRUE(peer.ok()) << peer.status().to_string();
  const std::vector<Piece> pieces{{local.region.key.id, (*peer)->regions().at(0).key.id, 0, 0, 4096}};
  ASSERT_OK(run(*engine, *peer, pieces, Op::kRead));
  owner.signal(SIGSTOP);
  const auto transfer = start(*engine, *peer, pieces, Op::kRead);
  ASSERT_TRUE(transfer.ok());
  std::this_thread::sleep_for(milliseconds(100));  // until its request is under way; if it is not, all the better
  EXPECT_EQ(exit_code_of_child([&] {
              (*transfer)->cancel();
              return 0;
            }),
            0);
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_EQ(engine->counters()["rail_failures_total"], 0u);
  owner.signal(SIGCONT);
  ASSERT_TRUE((*transfer)->wait(kPatience));
  EXPECT_OK((*transfer)->status());
}

TEST(Lifetime, ClosingEndsTheOpeningOfARail) {
  EngineOptions options = options_for({"tcp"});
  Buffer near, far;
  auto b = make_engine(options);
  far = register_buffer(*b, 4096, 2);
  Proxy proxy(b->endpoint(), 0, 0);
  options.connect_timeout = milliseconds(60000);
  auto a = make_engine(options);
  near = register_buffer(*a, 4096, 1);
  auto peer = a->connect(proxy.endpoint(), b->node_id(), kPatience);
  ASSERT_TRUE(peer.ok()) << peer.status().to_string();
  proxy.answer_no_more();
  auto transfer = start(*a, *peer, {{near.region.key.id, far.region.key.id, 0, 0, 4096}}, Op::kRead);
  ASSERT_TRUE(transfer.ok());
  EXPECT_FALSE((*transfer)->wait(milliseconds(100)));
  const auto begin = Clock::now();
  a->close();
  EXPECT_LT(Clock::now() - begin, milliseconds(20000));
  EXPECT_TRUE((*transfer)->settled());
}

}  // namespace
}  // namespace kvferry::testing
