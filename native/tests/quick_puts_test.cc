// Puts without a message, on the store alone: what becomes visible when, who wins, whose memory it is when a client
// dies, and that what is offered is as good as free.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "store/extent_allocator.h"
#include "store/quick_writer.h"
#include "store/runs.h"
#include "store_fixture.h"

namespace kvferry::store::testing {
namespace {

constexpr std::uint64_t kSize = 16u << 10;

NodeOptions options_of(std::uint64_t dram_bytes = 8u << 20) {
  NodeOptions options;
  options.dram_bytes = dram_bytes;
  return options;
}

std::string value_of(std::uint64_t number, std::uint64_t version, std::uint64_t size) {
  std::string value(size, static_cast<char>('a' + (number + version) % 26));
  std::memcpy(value.data(), &number, sizeof number);
  std::memcpy(value.data() + sizeof number, &version, sizeof version);
  return value;
}

ContentDigest digest_of_value(const std::string& value) {
  const std::span<const std::byte> run = as_byte_view(value);
  return digest_of(ConstPieces(&run, 1));
}

// A client that puts quickly whatever it can.
class QuickClient {
 public:
  explicit QuickClient(const StoreOnMemory& store, std::uint64_t size = kSize)
      : store_(store), gone_(std::make_shared<std::atomic<bool>>(false)) {
    const auto page = store->add_client([gone = gone_] { return gone->load(); });
    EXPECT_TRUE(page.ok());
    page_ = page.ok() ? *page : 0;
    reader_ = store.reader(page_);
    want(size);
  }
  void want(std::uint64_t size) const { store_->offer_quick_puts(page_, size); }
  bool put(std::uint64_t number, std::uint64_t version = 0, std::uint64_t size = kSize) const {
    return put_object(StoreOnMemory::object(number, size), version);
  }
  bool put_object(const NewObject& object, std::uint64_t version = 0) const {
    const std::string value = value_of(object.id.lo, version, object.bytes);
    const std::span<const std::byte> run = as_byte_view(value);
    return reader_->put(object, ConstPieces(&run, 1), Stores::kCached).stored;
  }
  // For a put that nothing hinders: only what was offered may have been taken back, if this thread stood still.
  bool put_surely(std::uint64_t number, std::uint64_t version = 0, std::uint64_t size = kSize) const {
    return eventually([&] {
      want(size);
      return put(number, version, size);
    });
  }
  // Begins a put and never ends it. The entry.
  std::optional<std::uint32_t> begin() const {
    std::optional<std::uint32_t> entry;
    EXPECT_TRUE(eventually([&] {
      want(kSize);
      entry = writer().take(kSize);
      return entry.has_value();
    }));
    return entry;
  }
  QuickWriter writer() const { return {store_.shared().pins, page_}; }
  void die() const { *gone_ = true; }
  std::uint32_t page() const { return page_; }
  LocalReader& reader() const { return *reader_; }

 private:
  const StoreOnMemory& store_;
  const std::shared_ptr<std::atomic<bool>> gone_;
  std::uint32_t page_ = 0;
  std::unique_ptr<LocalReader> reader_;
};

bool holds_version(const StoreOnMemory& store, std::uint64_t number, std::uint64_t version) {
  const auto held = store->find(id_of(number));
  return held && held->digest == digest_of_value(value_of(id_of(number).lo, version, held->bytes));
}

std::uint64_t largest_free(const StoreOnMemory& store) { return store->stats().dram_largest_free; }

TEST(QuickPuts, AreThereOnceTheNodeHasLooked) {
  const StoreOnMemory store(options_of());
  store->allow_quick_puts(true);
  const QuickClient client(store);
  EXPECT_FALSE(store->quick_puts_waiting());
  NewObject object = StoreOnMemory::object(1, kSize - 100);
  object.parent = id_of(7);
  object.depth = 3;
  object.expires_in = milliseconds(3600000);
  ASSERT_TRUE(eventually([&] {
    client.want(object.bytes);
    return client.put_object(object);
  }));
  const LocalStore::QuickPutsDone done = store->settle_quick_puts();
  EXPECT_EQ(done.ids, std::vector<ObjectId>{object.id});
  EXPECT_EQ(done.bytes, object.bytes);
  EXPECT_FALSE(client.reader().puts_waiting());
  ASSERT_TRUE(holds_version(store, 1, 0));
  const auto known = store->describe(object.id);
  ASSERT_TRUE(known);
  EXPECT_EQ(known->key, object.key);
  EXPECT_EQ(known->parent, object.parent);
  EXPECT_EQ(known->depth, 3u);
  EXPECT_TRUE(known->expires_in && *known->expires_in > milliseconds(3000000));
  const auto pin = client.reader().pin(object.id);
  ASSERT_TRUE(pin.ok() && *pin);
  const auto bytes = client.reader().memory((*pin)->places.at(0));
  EXPECT_EQ(as_text(bytes), value_of(object.id.lo, 0, object.bytes));
  client.reader().unpin(**pin);
}

TEST(QuickPuts, TakeAMessageWhenTheyMust) {
  const StoreOnMemory store(options_of());
  const QuickClient client(store);
  EXPECT_FALSE(client.put(1)) << "not allowed yet";
  store->allow_quick_puts(true);
  EXPECT_FALSE(client.put(1)) << "nothing offered yet";
  client.want(kSize);
  EXPECT_FALSE(client.put(1, 0, 3 * kSize)) << "another size";
  NewObject object = StoreOnMemory::object(1, kSize);
  object.tags = {"tag"};
  EXPECT_FALSE(client.put_object(object));
  object.tags.clear();
  object.replicas = 2;
  EXPECT_FALSE(client.put_object(object));
  EXPECT_TRUE(client.put_surely(1));
  store->allow_quick_puts(false);
  EXPECT_TRUE(store.has(1)) << "closed and taken in";
  EXPECT_FALSE(client.put(2));
  EXPECT_TRUE(store.put(2, kSize).ok());
}

TEST(QuickPuts, StoreOneValueForEachKey) {
  const StoreOnMemory store(options_of());
  store->allow_quick_puts(true);
  const QuickClient first(store);
  const QuickClient second(store);
  const auto before = store->reserve(9, StoreOnMemory::object(1, kSize), soon());
  ASSERT_TRUE(before.ok());
  ASSERT_TRUE(first.put_surely(1, 5));
  EXPECT_FALSE(second.put(1, 6)) << "it waits to be taken in";
  // What was reserved before comes second, although the node has not looked.
  EXPECT_EQ(store.commit(9, before->put, digest_for(id_of(1))).status().code(), Code::kConflict);
  EXPECT_TRUE(holds_version(store, 1, 5));
  EXPECT_FALSE(second.put(1, 6)) << "it is there";
  ASSERT_TRUE(store->remove(id_of(1)));
  EXPECT_TRUE(second.put_surely(1, 6));
  (void)store->settle_quick_puts();
  EXPECT_TRUE(holds_version(store, 1, 6));
  EXPECT_EQ(store.counter("quick_puts_total"), 2u);
  EXPECT_EQ(store.counter("stored_total"), 2u);
}

TEST(QuickPuts, OfADyingClientAreKeptAndItsMemoryComesBack) {
  const StoreOnMemory store(options_of());
  store->allow_quick_puts(true);
  const std::uint64_t all = largest_free(store);
  const QuickClient client(store);
  ASSERT_TRUE(client.put_surely(1));
  ASSERT_TRUE(client.begin()) << "it dies in the middle of a put";
  ASSERT_TRUE(client.begin());
  client.die();
  EXPECT_TRUE(eventually([&] { return store->stats().clients == 0; }));
  EXPECT_TRUE(holds_version(store, 1, 0));
  EXPECT_TRUE(store->remove(id_of(1)));
  EXPECT_TRUE(eventually([&] { return largest_free(store) == all; }));
  const QuickClient next(store);
  EXPECT_TRUE(next.put_surely(2)) << "the page serves its next client";
}

TEST(QuickPuts, MemoryThatAClientWritesToIsItsOwn) {
  const StoreOnMemory store(options_of());
  store->allow_quick_puts(true);
  const std::uint64_t all = largest_free(store);
  const QuickClient client(store);
  const auto entry = client.begin();
  ASSERT_TRUE(entry);
  const std::span<std::byte> memory = client.reader().memory(client.writer().place(*entry, kSize));
  std::memset(memory.data(), 'w', memory.size());
  store->allow_quick_puts(false);
  // Fill all there is, several times over.
  for (std::uint64_t i = 0; i < 1200; ++i) ASSERT_TRUE(store.put(100 + i, kSize).ok());
  EXPECT_TRUE(std::ranges::all_of(memory, [](std::byte byte) { return byte == std::byte{'w'}; }));
  client.writer().give_back(*entry, kSize);
  for (std::uint64_t i = 0; i < 1200; ++i) store->remove(id_of(100 + i));
  EXPECT_TRUE(eventually([&] { return largest_free(store) == all; }));
}

TEST(QuickPuts, WhatIsOfferedCountsAsFree) {
  NodeOptions options = options_of(4u << 20);
  options.watermark_high = 1.0;
  const StoreOnMemory store(options);
  store->allow_quick_puts(true);
  std::vector<std::unique_ptr<QuickClient>> clients;
  for (int i = 0; i < 8; ++i) clients.push_back(std::make_unique<QuickClient>(store));
  EXPECT_LT(largest_free(store), std::uint64_t{4} << 20) << "there are offers";
  EXPECT_EQ(store->stats().dram_used, 0u);
  EXPECT_TRUE(store.put(1, (4u << 20) - 4096).ok());
  EXPECT_EQ(store.counter("evicted_total"), 0u);
  EXPECT_FALSE(clients[0]->put(2)) << "taken back";
  EXPECT_TRUE(store.put(2, kSize).ok()) << "by message, with eviction";
}

TEST(QuickPuts, OfferedSlotsCountAsFree) {
  NodeOptions options = options_of();
  options.max_objects = 64;
  const StoreOnMemory store(options);
  store->allow_quick_puts(true);
  const QuickClient client(store);
  ASSERT_TRUE(client.put_surely(1000));
  for (std::uint64_t i = 0; i < 63; ++i) ASSERT_TRUE(store.put(i, 64).ok());
  EXPECT_EQ(store.counter("evicted_total"), 0u);
  EXPECT_EQ(store->stats().objects, 64u);
}

TEST(QuickPuts, OffersComeBackFromWhoDoesNotUseThem) {
  const StoreOnMemory store(options_of());
  store->allow_quick_puts(true);
  const std::uint64_t all = largest_free(store);
  const QuickClient client(store);
  EXPECT_TRUE(eventually([&] { return largest_free(store) == all; }));
  EXPECT_TRUE(client.put_surely(1));
}

TEST(QuickPuts, OffersFollowTheSizesOfTheValues) {
  const StoreOnMemory store(options_of(64u << 20));
  store->allow_quick_puts(true);
  const QuickClient client(store);
  std::uint64_t number = 0;
  for (std::uint64_t size = kSize; size <= 8 * kSize; size += kSize) {
    EXPECT_TRUE(client.put_surely(++number, 0, size)) << size;
  }
  (void)store->settle_quick_puts();
  for (std::uint64_t i = 1; i <= number; ++i) EXPECT_TRUE(holds_version(store, i, 0)) << i;
}

// Otherwise they would take the place of all others, as long as the client puts anything.
TEST(QuickPuts, OffersOfSizesThatAreNotWrittenAnyMoreStandBack) {
  const StoreOnMemory store(options_of(16u << 20));
  store->allow_quick_puts(true);
  const QuickClient client(store);
  ASSERT_TRUE(client.put_surely(1));
  EXPECT_TRUE(client.put_surely(2, 0, 32 * kSize)) << "half of all that may be offered";
  EXPECT_TRUE(client.put_surely(3));
}

TEST(QuickPuts, NonsenseInTheSharedMemoryHarmsNobody) {
  const StoreOnMemory store(options_of(32u << 20));
  store->allow_quick_puts(true);
  const QuickClient good(store);
  const QuickClient bad(store);
  const std::span<std::byte> pins = store.shared().pins;
  const QuickMemory memory = QuickMemory::of(pins);
  ASSERT_GT(memory.pages.size(), bad.page());
  std::mt19937_64 random(11);
  const auto below = [&random](std::uint64_t end) { return random() % end; };
  for (int round = 0; round < 200; ++round) {
    bad.want(kSize);
    ASSERT_TRUE(good.put_surely(static_cast<std::uint64_t>(round)));
    (void)store->settle_quick_puts();
    QuickPage& page = memory.pages.data()[bad.page()];
    const auto entry = static_cast<std::uint32_t>(below(kQuickEntries));
    if (below(4) != 0) page.state[entry] = quick_state(ExtentAllocator::rounded(kSize), QuickUse::kTaken);
    page.entries[entry].key_bytes = static_cast<std::uint16_t>(below(3000));
    page.entries[entry].tenant_bytes = static_cast<std::uint16_t>(below(600));
    page.entries[entry].bytes = below(2) != 0 ? kSize : random();
    page.entries[entry].link = below(3) != 0 ? below(20000) : quick_ref(bad.page(), entry);
    const QuickDoor door = QuickDoor::of(memory.door->load());
    memory.door->store(
        QuickDoor{door.version + 1, static_cast<std::uint32_t>(below(256)), quick_ref(bad.page(), entry), false, true}
            .word());
    (void)store->settle_quick_puts();
    ASSERT_TRUE(store->check().ok()) << store->check().to_string();
    ASSERT_TRUE(holds_version(store, static_cast<std::uint64_t>(round), 0));
  }
  EXPECT_GT(store.counter("quick_puts_refused_total"), 0u);
}

// Clients and messages race for the same keys; each key gets one value, of whoever was told that he stored it.
TEST(QuickPuts, RaceForKeys) {
  constexpr std::uint64_t kKeys = 300;
  constexpr std::uint64_t kClients = 3;
  const StoreOnMemory store(options_of(64u << 20));
  store->allow_quick_puts(true);
  std::vector<std::array<std::atomic<bool>, kKeys>> stored(kClients + 1);
  std::vector<std::unique_ptr<QuickClient>> clients;
  for (std::uint64_t i = 0; i < kClients; ++i) clients.push_back(std::make_unique<QuickClient>(store));
  std::vector<std::thread> threads;
  for (std::uint64_t who = 0; who < kClients; ++who) {
    threads.emplace_back([&, who] {
      for (std::uint64_t key = 0; key < kKeys; ++key) {
        if (key % 8 == 0) clients[who]->want(kSize);
        stored[who][key] = clients[who]->put(key, who);
      }
    });
  }
  threads.emplace_back([&] {
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      const auto reserved = store->reserve(77, StoreOnMemory::object(key, kSize), soon());
      if (!reserved.ok() || reserved->existing) continue;
      const std::string value = value_of(id_of(key).lo, kClients, kSize);
      const std::span<std::byte> target = store.arenas().at(0).subspan(reserved->places.at(0).offset, value.size());
      std::ranges::copy(as_byte_view(value), target.begin());
      const auto made = store.commit(77, reserved->put, digest_of_value(value));
      stored[kClients][key] = made.ok() && *made;
    }
  });
  for (std::thread& thread : threads) thread.join();
  (void)store->settle_quick_puts();
  std::uint64_t quick = 0;
  for (std::uint64_t key = 0; key < kKeys; ++key) {
    std::uint64_t winners = 0;
    for (std::uint64_t who = 0; who <= kClients; ++who) {
      if (!stored[who][key]) continue;
      ++winners;
      quick += who < kClients ? 1 : 0;
      EXPECT_TRUE(holds_version(store, key, who)) << key;
    }
    EXPECT_LE(winners, 1u) << key;
    EXPECT_EQ(winners == 1, store.has(key)) << key;
  }
  EXPECT_EQ(store.counter("quick_puts_total"), quick);
  EXPECT_EQ(store.counter("quick_puts_refused_total"), 0u);
}

}  // namespace
}  // namespace kvferry::store::testing
