// A client and the node it is attached to: what it holds there when the connection breaks, is closed, or must be made
// again; whom it passes over.
#include <future>

#include "kvferry/store.h"
#include "store/client/links.h"
#include "store/process.h"
#include "store_cluster.h"

namespace kvferry::store::testing {
namespace {

constexpr std::size_t kObject = 1u << 20;

struct Client {
  explicit Client(const Node& node, StoreOptions options = {}) {
    auto opened = Store::open(node.endpoint(), std::move(options));
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    if (opened.ok()) store = *std::move(opened);
  }
  Status put(std::string_view key, char fill, std::size_t size = kObject) const {
    const std::string value(size, fill);
    const std::span<const std::byte> run = as_byte_view(value);
    const ConstPieces pieces(&run, 1);
    return store->put({&key, 1}, {&pieces, 1}, {}).at(0).status;
  }
  GetResult get(std::string_view key, std::size_t size, const ReadOptions& options = {}) const {
    std::vector<std::byte> target(size);
    const std::span<std::byte> run(target);
    const Pieces pieces(&run, 1);
    return store->get_into({&key, 1}, {&pieces, 1}, options).at(0);
  }
  // Removes it, and stores so much that no memory of a node of 8 MiB keeps its bytes unless it is pinned.
  void bury(std::string_view key, char fill) const {
    EXPECT_TRUE(store->remove({&key, 1}, {}).at(0).ok());
    for (int i = 0; i < 24; ++i) EXPECT_TRUE(put("flood " + std::to_string(i), fill).ok());
  }
  std::unique_ptr<Store> store;
};

bool all_are(const View& view, char fill) {
  for (const auto& piece : view.pieces()) {
    if (!std::ranges::all_of(piece, [fill](std::byte byte) { return byte == static_cast<std::byte>(fill); })) {
      return false;
    }
  }
  return view.bytes() == kObject;
}

void break_connections(NodeImpl& node) {
  for (const auto& peer : node.rpc().engine().peers()) peer->close();
}

TEST(StoreClientAttach, ViewsStayPinnedWhenTheConnectionIsMadeAgain) {
  const auto node = make_node(node_options(8u << 20));
  const Client client(*node);
  ASSERT_TRUE(client.put("held", 'h').ok());
  ASSERT_TRUE(client.put("other", 'o').ok());
  auto held = client.store->view("held", {});
  ASSERT_TRUE(held.ok()) << held.status().to_string();
  ASSERT_TRUE(all_are(*held, 'h'));
  break_connections(*node);
  ASSERT_TRUE(soon([&] {
    (void)client.store->exists({}, {}, {});
    return client.store->counters().at("client_attachments_total") == 2;
  }));
  auto other = client.store->view("other", {});
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  const Client second(*node);
  second.bury("held", 'x');
  EXPECT_TRUE(all_are(*held, 'h'));
  EXPECT_TRUE(all_are(*other, 'o'));
  held->release();
  other->release();
  EXPECT_TRUE(soon([&] { return node->stats().pinned_objects == 0; }));
}

TEST(StoreClientAttach, ViewsStayPinnedWhenTheStoreIsClosed) {
  const auto node = make_node(node_options(8u << 20));
  const Client client(*node);
  ASSERT_TRUE(client.put("held", 'h').ok());
  auto held = client.store->view("held", {});
  ASSERT_TRUE(held.ok()) << held.status().to_string();
  client.store->close();
  const Client second(*node);
  second.bury("held", 'x');
  EXPECT_TRUE(all_are(*held, 'h'));
  held->release();
}

TEST(StoreClientAttach, CallsKeepTheirDeadlinesWhileAnotherAttachesAgain) {
  std::promise<void> asked, answered;
  std::atomic<bool> in_time{false}, again{false};
  auto first = make_node();
  StoreOptions options;
  options.find_node = [&, waited = answered.get_future().share()]() -> std::optional<Endpoint> {
    if (again.exchange(true)) return std::nullopt;
    asked.set_value();
    in_time = waited.wait_for(kPatience) == std::future_status::ready;
    return std::nullopt;
  };
  const Client client(*first, options);
  first.reset();
  std::future<void> asking = asked.get_future();
  std::atomic<bool> stop{false};
  std::thread slow([&] {
    // Not every get looks for a node again: the one during which the connection breaks fails with that.
    while (!stop) (void)client.get("key", 10);
  });
  EXPECT_EQ(asking.wait_for(kPatience), std::future_status::ready);
  const ReadOptions brief{milliseconds(50), {}};
  EXPECT_FALSE(client.get("key", 10, brief).status.ok());
  (void)client.store->status();
  stop = true;
  answered.set_value();
  slow.join();
  EXPECT_TRUE(in_time);
}

// The connection hangs, and comes to life long after the call gave up.
TEST(StoreClientAttach, NothingIsWrittenOnceAReadHasReturned) {
  const auto node = make_node();
  StoreOptions options;
  options.engine.transports = {"tcp"};
  options.engine.tcp_streams = 1;
  options.engine.fault_plan = "tcp:late=5800@1x1";
  const Client client(*node, options);
  ASSERT_TRUE(client.put("key", 'k').ok());
  std::vector<std::byte> target(kObject);
  ASSERT_TRUE(client.store->register_memory(target.data(), target.size()).ok());
  const std::span<std::byte> run(target);
  const Pieces pieces(&run, 1);
  const std::string_view key = "key";
  const auto got = client.store->get_into({&key, 1}, {&pieces, 1}, {milliseconds(300), {}}).at(0);
  EXPECT_EQ(got.status.code(), Code::kDeadlineExceeded) << got.status.to_string();
  std::ranges::fill(target, std::byte{'m'});
  EXPECT_TRUE(soon([&] { return client.get("key", kObject).status.ok(); }));  // by the same lane: it is back
  EXPECT_TRUE(std::ranges::all_of(target, [](std::byte byte) { return byte == std::byte{'m'}; }));
}

TEST(StoreClientAttach, ABrokenConnectionIsNotUsedAgain) {
  const auto node = make_node();
  const auto rpc = RpcEndpoint::create({}, nullptr, {1});
  ASSERT_TRUE(rpc.ok());
  Links links(**rpc, "local");
  links.take_view(1, {1, {member_of(*node, "host")}});
  const auto first = links.to(node->node_id(), deadline_in(kPatience));
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  (*first)->peer->close();  // before lost() could be told of it
  const auto second = links.to(node->node_id(), deadline_in(kPatience));
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  EXPECT_TRUE((*second)->peer->status().ok());
}

TEST(StoreClientAttach, WhatIsAskedOfAllMembersFailsIfOneIsPassedOver) {
  TestCluster cluster(2);
  ASSERT_TRUE(cluster.settle());
  const Client client(cluster.node(0));
  ASSERT_TRUE(soon([&] { return client.store->members().size() == 2; }));
  cluster.kill(1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(client.store->list("", "", 10, {}).ok());
    EXPECT_FALSE(client.store->remove_tag("tag", {}).ok());
  }
}

TEST(StoreClientAttach, AKeysFailureDoesNotTouchTheOthers) {
  const auto node = make_node();
  const Client client(*node);
  ASSERT_TRUE(client.put("key", 'k', 10).ok());
  const std::vector<std::string_view> keys{"", "key"};
  const auto sizes = client.store->sizes(keys, {});
  EXPECT_EQ(sizes.at(0).status().code(), Code::kInvalidArgument);
  ASSERT_TRUE(sizes.at(1).ok());
  EXPECT_EQ(*sizes.at(1), 10u);
  const auto removed = client.store->remove(keys, {});
  EXPECT_EQ(removed.at(0).code(), Code::kInvalidArgument);
  EXPECT_TRUE(removed.at(1).ok());
  EXPECT_EQ(client.get("key", 10).status.code(), Code::kNotFound);
}

TEST(StoreClientAttach, BytesThatAreNotThoseOfTheDigestAreSaidToBeCorrupt) {
  const auto node = make_node();
  StoreOptions options;
  options.verify = true;
  const Client client(*node, options);
  ASSERT_TRUE(client.put("key", 'k').ok());
  ASSERT_TRUE(client.get("key", kObject).status.ok());
  for (const auto& arena : node->memory().arenas) {
    const auto at = std::ranges::find(arena, static_cast<std::byte>('k'));
    if (at != arena.end()) *at = std::byte{0};
  }
  EXPECT_EQ(client.get("key", kObject).status.code(), Code::kDataCorrupt);
  EXPECT_EQ(client.store->view("key", {}).status().code(), Code::kDataCorrupt);
  EXPECT_EQ(client.store->counters().at("client_memory_hits_total"), 1u);
}

// A put that was begun when the connection broke: nobody can end it any more, and its memory is the node's as soon as
// nobody writes to it, although the process lives.
TEST(StoreClientAttach, ReservedMemoryComesBackFromALivingClient) {
  const auto node = make_node(node_options(8u << 20));
  auto rpc = RpcEndpoint::create({}, nullptr, {});
  ASSERT_TRUE(rpc.ok());
  const auto peer = (*rpc)->engine().connect(node->endpoint(), node->node_id(), kPatience);
  ASSERT_TRUE(peer.ok());
  Attach attach;
  attach.cluster = "local";
  const ProcessRef self = ProcessRef::self();
  attach.pid = static_cast<std::uint32_t>(self.pid);
  attach.process_start = self.start;
  attach.shared_memory = true;
  const auto attached = (*rpc)->call((*peer)->handle(), attach, deadline_in(kPatience));
  ASSERT_TRUE(attached.ok()) << attached.status().to_string();
  const auto reader = LocalReader::attach(node->memory(), (*attached)->page, node->node_id());
  ASSERT_TRUE(reader.ok());
  const Session session = (*attached)->session;
  Reserve reserve;
  reserve.objects.push_back(TestClient::object("begun", std::string(kObject, 'b'), 1));
  const auto reserved = (*rpc)->call((*peer)->handle(), reserve, deadline_in(kPatience));
  ASSERT_TRUE(reserved.ok() && (*reserved)->results.at(0).status.ok());
  ASSERT_TRUE((*reader)->begin_writing(session));
  break_connections(*node);
  // The node asks now, or will: whatever it was told, it waits for the writer.
  ASSERT_TRUE(soon([&] {
    if (!(*reader)->begin_writing(session)) return true;
    (*reader)->end_writing(session);
    return false;
  }));
  EXPECT_EQ(node->stats().dram_used, kObject);
  (*reader)->end_writing(session);
  EXPECT_TRUE(soon([&] { return node->stats().dram_used == 0; }));
  EXPECT_TRUE((*reader)->begin_writing(session + 1)) << "of the next connection";
}

}  // namespace
}  // namespace kvferry::store::testing
