// Puts without a message between a client and its node: everybody finds them at once, and they end when other nodes
// have a say.
#include <thread>

#include "kvferry/store.h"
#include "store_cluster.h"

namespace kvferry::store::testing {
namespace {

constexpr std::size_t kSize = 32u << 10;

struct Client {
  explicit Client(const Node& node, std::vector<std::string> transports = {"shm", "tcp"}) {
    StoreOptions options;
    options.engine.transports = std::move(transports);
    auto opened = Store::open(node.endpoint(), std::move(options));
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    if (opened.ok()) store = *std::move(opened);
  }
  PutResult put(const std::string& key, char fill) const {
    const std::string_view name = key;
    const std::string value(kSize, fill);
    const std::span<const std::byte> run = as_byte_view(value);
    const ConstPieces pieces(&run, 1);
    return store->put({&name, 1}, {&pieces, 1}, {}).at(0);
  }
  // The bytes' letter; '?': other bytes; '-': absent.
  char get(const std::string& key) const {
    const std::string_view name = key;
    std::string target(kSize, '\0');
    const std::span<std::byte> run(reinterpret_cast<std::byte*>(target.data()), target.size());
    const Pieces pieces(&run, 1);
    const GetResult got = store->get_into({&name, 1}, {&pieces, 1}, {}).at(0);
    if (got.status.code() == Code::kNotFound) return '-';
    return got.status.ok() && target == std::string(kSize, target[0]) ? target[0] : '?';
  }
  bool exists(const std::string& key) const {
    const std::string_view name = key;
    std::uint8_t found = 0;
    EXPECT_TRUE(store->exists({&name, 1}, {&found, 1}, {}).ok());
    return found != 0;
  }
  std::unique_ptr<Store> store;
};

std::uint64_t quick_puts(const Node& node) { return node.stats().counters.at("quick_puts_total"); }

std::string key_at(int number) { return "key " + std::to_string(number); }

TEST(StoreQuick, EverybodyFindsThemAtOnce) {
  const auto node = make_node();
  const Client writer(*node);
  const Client here(*node);
  const Client remote(*node, {"tcp"});
  for (int i = 0; i < 200; ++i) {
    const char fill = static_cast<char>('a' + i % 26);
    const std::string key = key_at(i);
    const PutResult put = writer.put(key, fill);
    ASSERT_TRUE(put.status.ok()) << put.status.to_string();
    EXPECT_TRUE(put.created);
    EXPECT_EQ(put.replicas, 1u);
    const std::string_view name = key;
    switch (i % 7) {
      case 0:
        ASSERT_EQ(here.get(key), fill) << i;
        break;
      case 1:
        ASSERT_TRUE(here.exists(key)) << i;
        break;
      case 2:
        ASSERT_EQ(remote.get(key), fill) << i;
        break;
      case 3:
        ASSERT_EQ(here.store->match_prefix({&name, 1}, {}).value(), 1u) << i;
        break;
      case 4:
        ASSERT_EQ(here.store->sizes({&name, 1}, {}).at(0).value(), kSize) << i;
        break;
      case 5:
        ASSERT_TRUE(here.store->view(key, {}).ok()) << i;
        break;
      default:
        ASSERT_EQ(here.store->list(key, "", 10, {}).value().size(), 1u) << i;
    }
  }
  EXPECT_GT(quick_puts(*node), 0u);
  EXPECT_EQ(node->stats().counters.at("puts_total"), 200u);
  EXPECT_EQ(node->stats().counters.at("put_bytes_total"), 200 * kSize);
}

TEST(StoreQuick, PutsAreWrittenOnce) {
  const auto node = make_node();
  const Client first(*node);
  const Client second(*node);
  for (int i = 0; i < 100; ++i) {
    const Client& one = i % 2 == 0 ? first : second;
    const Client& other = i % 2 == 0 ? second : first;
    ASSERT_TRUE(one.put(key_at(i), 'x').created);
    const PutResult same = other.put(key_at(i), 'x');
    ASSERT_TRUE(same.status.ok());
    ASSERT_FALSE(same.created);
    ASSERT_EQ(other.put(key_at(i), 'y').status.code(), Code::kConflict);
    if (i % 3 != 0) continue;
    const std::string key = key_at(i);
    const std::string_view name = key;
    ASSERT_TRUE(one.store->remove({&name, 1}, {}).at(0).ok());
    ASSERT_EQ(other.get(key), '-');
    ASSERT_TRUE(other.put(key, 'z').created);
    ASSERT_EQ(one.get(key), 'z');
  }
  EXPECT_GT(quick_puts(*node), 0u);
}

TEST(StoreQuick, EndWhenAnotherNodeJoins) {
  const auto node = make_node();
  auto other = make_node();
  const Client client(*node);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(client.put(key_at(i), 'a').created);
  const std::uint64_t before = quick_puts(*node);
  EXPECT_GT(before, 0u);
  const std::vector<Member> both{member_of(*node, "one"), member_of(*other, "two")};
  node->set_members(1, both);
  other->set_members(1, both);
  ASSERT_TRUE(soon([&] { return node->is_settled() && other->is_settled(); }));
  TestClient asks(other->node_id());
  asks.know(both);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(asks.text(key_at(i)).size(), kSize) << i;
  for (int i = 20; i < 40; ++i) ASSERT_TRUE(client.put(key_at(i), 'b').created);
  EXPECT_EQ(quick_puts(*node), before);
  other.reset();
  node->set_members(2, {both[0]});
  int more = 1000;
  EXPECT_TRUE(soon([&] { return client.put(key_at(++more), 'c').created && quick_puts(*node) > before; }));
}

TEST(StoreQuick, SurviveARestartOfTheNode) {
  auto node = make_node();
  StoreOptions options;
  Endpoint now = node->endpoint();
  options.find_node = [&now] { return std::optional(now); };
  auto opened = Store::open(node->endpoint(), options);
  ASSERT_TRUE(opened.ok());
  Client client(*node);
  client.store = *std::move(opened);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(client.put(key_at(i), 'a').created);
  EXPECT_GT(quick_puts(*node), 0u);
  node = make_node();
  now = node->endpoint();
  ASSERT_TRUE(soon([&] { return client.put("again", 'b').status.ok(); }));
  EXPECT_EQ(client.get(key_at(1)), '-') << "it went with its node";
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(client.put(key_at(i), 'c').created);
  EXPECT_EQ(client.get(key_at(1)), 'c');
  EXPECT_GT(quick_puts(*node), 0u);
}

TEST(StoreQuick, ManyThreadsOfOneClient) {
  const auto node = make_node(node_options(64u << 20));
  const Client client(*node);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&client, t] {
      for (int i = 0; i < 100; ++i) {
        const char fill = static_cast<char>('a' + t);
        const std::string key = key_at(t * 1000 + i);
        EXPECT_TRUE(client.put(key, fill).created);
        EXPECT_EQ(client.get(key), fill);
        const std::string shared = "shared " + std::to_string(i);
        const Code code = client.put(shared, fill).status.code();
        EXPECT_TRUE(code == Code::kOk || code == Code::kConflict);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(quick_puts(*node), 0u);
  EXPECT_EQ(node->stats().counters.at("quick_puts_refused_total"), 0u);
  EXPECT_EQ(node->stats().objects, 500u);
}

}  // namespace
}  // namespace kvferry::store::testing
