// The rules of a node's store, one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "store/pin_layout.h"
#include "store_fixture.h"

namespace kvferry::store {
namespace {

using testing::digest_for;
using testing::eventually;
using testing::id_of;
using testing::key_of;
using testing::soon;
using testing::StoreOnMemory;

constexpr std::uint64_t kMiB = 1u << 20;

// Evicts when a put needs room, never by itself.
NodeOptions of_size(std::uint64_t dram_bytes) {
  NodeOptions options;
  options.dram_bytes = dram_bytes;
  options.policy = PolicyKind::kLru;
  options.watermark_high = 1;
  return options;
}

NewObject with_ttl(NewObject object, milliseconds ttl) {
  object.expires_in = ttl;
  return object;
}

TEST(LocalStore, MakesObjectsVisibleAtCommit) {
  StoreOnMemory node(of_size(kMiB));
  const NewObject object = StoreOnMemory::object(1, 5000);
  const auto reserved = node->reserve(1, object, soon());
  ASSERT_TRUE(reserved.ok());
  EXPECT_FALSE(reserved->existing);
  EXPECT_FALSE(node.has(1));
  EXPECT_EQ(node->pin(1, object.id, soon()).status().code(), Code::kNotFound);
  EXPECT_TRUE(*node->commit(1, reserved->put, digest_for(object.id)));
  const auto held = node->find(object.id);
  ASSERT_TRUE(held);
  EXPECT_EQ(held->bytes, 5000u);
  EXPECT_EQ(held->digest, digest_for(object.id));
  EXPECT_EQ(held->tier, Tier::kDram);
  EXPECT_EQ(node->stats().dram_used, 8192u);
}

TEST(LocalStore, TellsPutsThatTheirObjectWasRemoved) {
  StoreOnMemory node(of_size(kMiB));
  const NewObject object = StoreOnMemory::object(1, 100);
  for (const bool all : {false, true}) {
    const auto reserved = node->reserve(1, object, soon());
    ASSERT_TRUE(reserved.ok());
    if (all) {
      node->contest_puts();
    } else {
      EXPECT_FALSE(node->remove(object.id));
    }
    EXPECT_EQ(node->commit(1, reserved->put, digest_for(object.id)).status().code(), Code::kStale);
    EXPECT_FALSE(node.has(1));
    EXPECT_TRUE(*node->commit(1, reserved->put, digest_for(object.id)));
    EXPECT_TRUE(node->remove(object.id));
  }
}

TEST(LocalStore, HoldsPutsBackWhileOthersAreToldThatTheirObjectIsNotThere) {
  StoreOnMemory node(of_size(kMiB));
  const NewObject object = StoreOnMemory::object(1, 100);
  const auto before = node->reserve(1, object, soon());
  ASSERT_TRUE(before.ok() && node->hold_puts_back(object.id));
  const auto during = node->reserve(2, object, soon());
  ASSERT_TRUE(during.ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(node->commit(1, before->put, digest_for(object.id)).status().code(), Code::kStale);
    EXPECT_EQ(node->commit(2, during->put, digest_for(object.id)).status().code(), Code::kStale);
  }
  node->release_puts(object.id);
  EXPECT_EQ(node->commit(2, during->put, digest_for(object.id)).status().code(), Code::kStale);  // what it said is void
  EXPECT_TRUE(*node->commit(2, during->put, digest_for(object.id)));
  EXPECT_FALSE(node->hold_puts_back(object.id));  // it is there
  EXPECT_EQ(node->commit(1, before->put, digest_for(object.id)).status().code(), Code::kStale);
  EXPECT_FALSE(*node->commit(1, before->put, digest_for(object.id)));
}

TEST(LocalStore, SaysWhatIsThereAlready) {
  StoreOnMemory node(of_size(kMiB));
  const NewObject object = StoreOnMemory::object(1, 100);
  const auto first = node->reserve(1, object, soon()), second = node->reserve(2, object, soon()),
             third = node->reserve(2, object, soon());
  ASSERT_TRUE(first.ok() && second.ok() && third.ok());
  EXPECT_TRUE(*node->commit(2, second->put, digest_for(object.id)));
  EXPECT_FALSE(*node->commit(1, first->put, digest_for(object.id)));  // the same bytes
  EXPECT_EQ(node->commit(2, third->put, digest_for(object.id, 1)).status().code(), Code::kConflict);
  const auto again = node->reserve(3, object, soon());
  ASSERT_TRUE(again.ok() && again->existing);
  EXPECT_EQ(again->existing->digest, digest_for(object.id));
  EXPECT_TRUE(again->places.empty());
  EXPECT_EQ(node->stats().objects, 1u);
  EXPECT_EQ(node->stats().dram_used, 128u);
}

TEST(LocalStore, RefusesPutsOfOthersAndOldNames) {
  StoreOnMemory node(of_size(kMiB));
  const NewObject object = StoreOnMemory::object(1, 100);
  const auto first = node->reserve(1, object, soon());
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(node->commit(2, first->put, digest_for(object.id)).status().code(), Code::kNotFound);
  node->abort(2, first->put);
  EXPECT_GT(node->stats().dram_used, 0u);
  node->abort(1, first->put);
  EXPECT_EQ(node->stats().dram_used, 0u);
  EXPECT_EQ(node->commit(1, first->put, digest_for(object.id)).status().code(), Code::kNotFound);
  EXPECT_FALSE(node.has(1));
}

TEST(LocalStore, KeepsTheMemoryOfPutsThatCameTooLate) {
  NodeOptions options = of_size(kMiB);
  options.reservation_lease = milliseconds(50);
  StoreOnMemory node(options);
  const NewObject object = StoreOnMemory::object(1, kMiB);
  const auto late = node->reserve(1, object, soon());
  ASSERT_TRUE(late.ok());
  ASSERT_TRUE(eventually([&] { return node.counter("reservation_leases_ended_total") == 1; }));
  // Refused, and its writer may still write: nobody else gets that memory.
  EXPECT_EQ(node->commit(1, late->put, digest_for(object.id)).status().code(), Code::kNotFound);
  EXPECT_EQ(node.put(2, kMiB).code(), Code::kResourceExhausted);
  EXPECT_TRUE(node->check().ok());
  node->abort(1, late->put);
  EXPECT_TRUE(node.put(2, kMiB).ok());
  EXPECT_TRUE(node->remove(id_of(2)));

  // A key is not unusable because its first writer went away; its late end does not complete the newer put.
  const auto dead = node->reserve(3, object, soon());
  ASSERT_TRUE(dead.ok());
  ASSERT_TRUE(eventually([&] { return node.counter("reservation_leases_ended_total") == 2; }));
  EXPECT_FALSE(node.has(1));
  EXPECT_FALSE(node->remove(object.id));
  node->end_session(3);
  const auto newer = node->reserve(4, object, soon());
  ASSERT_TRUE(newer.ok());
  EXPECT_EQ(node->commit(3, dead->put, digest_for(object.id)).status().code(), Code::kNotFound);
  EXPECT_FALSE(node.has(1));
}

TEST(LocalStore, WaitsForTheLastWriteOfAnEndedSession) {
  StoreOnMemory node(of_size(kMiB));
  const auto reserved = node->reserve(1, StoreOnMemory::object(1, kMiB), soon());
  ASSERT_TRUE(reserved.ok());
  std::atomic<bool> writes{true};
  std::atomic<int> asked{0};
  node->end_session(1, [&] {
    ++asked;
    return writes.load();
  });
  EXPECT_EQ(node->commit(1, reserved->put, {}).status().code(), Code::kNotFound);
  ASSERT_TRUE(eventually([&] { return asked > 1; }));
  EXPECT_EQ(node.put(2, kMiB).code(), Code::kResourceExhausted);
  EXPECT_TRUE(node->check().ok());
  writes = false;
  EXPECT_TRUE(eventually([&] { return node.put(2, kMiB).ok(); }));
}

TEST(LocalStore, EvictsWhatWasNotUsedAndTellsOfIt) {
  StoreOnMemory node(of_size(8 * kMiB));
  std::mutex mutex;
  std::vector<ObjectId> dropped;
  node->on_dropped([&](std::span<const ObjectId> ids) {
    const std::lock_guard lock(mutex);
    dropped.insert(dropped.end(), ids.begin(), ids.end());
  });
  for (std::uint64_t i = 0; i < 7; ++i) ASSERT_TRUE(node.put(i, kMiB).ok());
  const auto used = node->pin(1, id_of(0), soon());
  ASSERT_TRUE(used.ok());
  EXPECT_TRUE(node->unpin(1, used->pin));
  for (std::uint64_t i = 7; i < 10; ++i) ASSERT_TRUE(node.put(i, kMiB).ok());
  EXPECT_TRUE(node.has(0));
  EXPECT_FALSE(node.has(1));
  EXPECT_TRUE(eventually([&] {
    const std::lock_guard lock(mutex);
    return !dropped.empty() && dropped.size() + node->stats().objects == 10;
  }));
  EXPECT_EQ(dropped.front(), id_of(1));
  EXPECT_EQ(node.counter("evicted_total"), dropped.size());
}

TEST(LocalStore, EvictsInTheBackgroundDownToTheLowWatermark) {
  NodeOptions options = of_size(64 * kMiB);
  options.watermark_high = 0.9;
  options.watermark_low = 0.5;
  StoreOnMemory node(options);
  for (std::uint64_t i = 0; i < 58; ++i) ASSERT_TRUE(node.put(i, kMiB).ok());
  EXPECT_TRUE(eventually([&] { return node->stats().dram_used <= 32 * kMiB; }));
  EXPECT_EQ(node.counter("evicted_in_put_total"), 0u);
  EXPECT_TRUE(node.has(57));
}

TEST(LocalStore, KeepsAnObjectAsLargeAsItsMemory) {
  StoreOnMemory node(of_size(8 * kMiB));
  ASSERT_TRUE(node.put(1, kMiB).ok());
  ASSERT_TRUE(node.put(2, 8 * kMiB).ok());
  std::this_thread::sleep_for(milliseconds(300));  // some rounds of what it does by itself
  EXPECT_TRUE(node.has(2));
  ASSERT_TRUE(node.put(3, 4096).ok());
  EXPECT_FALSE(node.has(2));
}

TEST(LocalStore, NeverEvictsWhatIsPinned) {
  StoreOnMemory node(of_size(4 * kMiB));
  const auto client = node.new_client();
  ASSERT_TRUE(node.put(0, kMiB).ok() && node.put(1, kMiB).ok());
  const auto in_place = client->pin(id_of(0));
  ASSERT_TRUE(in_place.ok() && *in_place);
  const auto remote = node->pin(7, id_of(1), soon());
  ASSERT_TRUE(remote.ok());
  for (std::uint64_t i = 10; i < 40; ++i) ASSERT_TRUE(node.put(i, kMiB).ok());
  EXPECT_TRUE(node.has(0) && node.has(1));
  EXPECT_TRUE(node.intact(id_of(0), (*in_place)->places));
  EXPECT_TRUE(node.intact(id_of(1), remote->places));
  EXPECT_EQ(node->stats().pinned_objects, 2u);

  // Two of four are in use: three cannot be had, and nothing is given up in vain.
  ASSERT_TRUE(node.put(40, kMiB).ok());
  const std::uint64_t objects = node->stats().objects;
  const Status refused = node.put(41, 3 * kMiB);
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_NE(refused.message().find("try again"), std::string::npos);
  EXPECT_EQ(node->stats().objects, objects);
  client->unpin(**in_place);
  EXPECT_TRUE(node->unpin(7, remote->pin));
  EXPECT_TRUE(node.put(41, 3 * kMiB).ok());
}

TEST(LocalStore, TakesPutsWhenEverythingWasJustLookedUp) {
  StoreOnMemory node(of_size(4 * kMiB));
  const auto client = node.new_client();
  for (std::uint64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(node.put(i, 64 << 10).ok()) << i;
    std::vector<ObjectId> ids;
    for (std::uint64_t k = 0; k <= i; ++k) ids.push_back(id_of(k));
    std::vector<std::uint8_t> found(ids.size());
    client->exists(ids, found);
    client->accessed(ids);
    EXPECT_TRUE(client->find(id_of(i)));
  }
}

TEST(LocalStore, KeepsTheMemoryOfRemovedObjectsForTheirReaders) {
  StoreOnMemory node(of_size(2 * kMiB));
  const auto client = node.new_client();
  ASSERT_TRUE(node.put(0, kMiB).ok());
  const auto in_place = client->pin(id_of(0));
  ASSERT_TRUE(in_place.ok() && *in_place);
  const auto remote = node->pin(7, id_of(0), soon());
  EXPECT_TRUE(node->remove(id_of(0)));
  EXPECT_FALSE(client->find(id_of(0)));
  EXPECT_FALSE(*client->pin(id_of(0)));
  ASSERT_TRUE(node.put(1, kMiB).ok());
  EXPECT_EQ(node.put(2, 2 * kMiB).code(), Code::kResourceExhausted);
  // Another object under the same id is another object.
  EXPECT_TRUE(node->remove(id_of(1)));
  ASSERT_TRUE(node.put(StoreOnMemory::object(0, kMiB), /*version=*/5).ok());
  EXPECT_TRUE(node.intact(id_of(0), (*in_place)->places));
  EXPECT_TRUE(node->check().ok());
  client->unpin(**in_place);
  EXPECT_EQ(node.put(2, 2 * kMiB).code(), Code::kResourceExhausted);
  EXPECT_TRUE(node->unpin(7, remote->pin));
  EXPECT_TRUE(node.put(2, 2 * kMiB).ok());
}

TEST(LocalStore, EndsThePinsOfSilentRemoteReadersOnly) {
  NodeOptions options = of_size(2 * kMiB);
  options.pin_lease = milliseconds(50);
  StoreOnMemory node(options);
  const auto client = node.new_client();
  ASSERT_TRUE(node.put(0, kMiB).ok());
  const auto in_place = client->pin(id_of(0));
  const auto remote = node->pin(7, id_of(0), soon());
  ASSERT_TRUE(in_place.ok() && *in_place && remote.ok());
  ASSERT_TRUE(eventually([&] { return node.counter("pin_leases_ended_total") == 1; }));
  EXPECT_FALSE(node->unpin(7, remote->pin));  // what it read may be wrong
  for (std::uint64_t i = 1; i < 9; ++i) ASSERT_TRUE(node.put(i, kMiB).ok());
  EXPECT_TRUE(node.intact(id_of(0), (*in_place)->places));
  EXPECT_TRUE(client->find(id_of(0)));
}

TEST(LocalStore, EndsThePinsOfASessionWithIt) {
  StoreOnMemory node(of_size(kMiB));
  ASSERT_TRUE(node.put(0, kMiB).ok());
  const auto pinned = node->pin(7, id_of(0), soon());
  ASSERT_TRUE(pinned.ok());
  EXPECT_FALSE(node->unpin(8, pinned->pin));
  EXPECT_EQ(node.put(1, kMiB).code(), Code::kResourceExhausted);
  node->end_session(7);
  EXPECT_FALSE(node->unpin(7, pinned->pin));
  EXPECT_TRUE(node.put(1, kMiB).ok());
}

TEST(LocalStore, VoidsThePinsOfDeadClients) {
  StoreOnMemory node(of_size(kMiB));
  std::atomic<bool> gone{false};
  const auto page = node->add_client([&] { return gone.load(); });
  ASSERT_TRUE(page.ok());
  const auto client = node.reader(*page);
  ASSERT_TRUE(node.put(0, kMiB).ok());
  ASSERT_TRUE(*client->pin(id_of(0)));
  EXPECT_EQ(node.put(1, kMiB).code(), Code::kResourceExhausted);
  gone = true;
  ASSERT_TRUE(eventually([&] { return node.counter("clients_gone_total") == 1; }));
  EXPECT_EQ(node->stats().clients, 0u);
  EXPECT_TRUE(node.put(1, kMiB).ok());
  const auto next = node->add_client([] { return false; });
  EXPECT_EQ(*next, *page);
}

TEST(LocalStore, HasPagesForSoManyClients) {
  StoreOnMemory node(of_size(kMiB));
  for (std::uint32_t i = 0; i < LocalStore::kMaxClients; ++i) ASSERT_TRUE(node->add_client([] { return false; }).ok());
  EXPECT_EQ(node->add_client([] { return false; }).status().code(), Code::kResourceExhausted);
  node->remove_client(7);
  EXPECT_EQ(*node->add_client([] { return false; }), 7u);
}

TEST(LocalStore, LetsAClientHoldSoManyPins) {
  StoreOnMemory node(of_size(kMiB));
  const auto client = node.new_client();
  ASSERT_TRUE(node.put(0, 64).ok());
  std::vector<LocalPin> pins;
  for (std::uint32_t i = 0; i < kPinEntries; ++i) pins.push_back(**client->pin(id_of(0)));
  EXPECT_EQ(client->pin(id_of(0)).status().code(), Code::kResourceExhausted);
  client->unpin(pins[77]);
  EXPECT_EQ((*client->pin(id_of(0)))->entry, pins[77].entry);
  for (const LocalPin& pin : pins) client->unpin(pin);
  EXPECT_EQ(node->stats().pinned_objects, 0u);
}

TEST(LocalStore, ForgetsObjectsWhoseTimeHasCome) {
  StoreOnMemory node(of_size(4 * kMiB));
  const auto client = node.new_client();
  ASSERT_TRUE(node.put(with_ttl(StoreOnMemory::object(0, kMiB), milliseconds(60))).ok());
  ASSERT_TRUE(node.put(with_ttl(StoreOnMemory::object(1, kMiB), std::chrono::hours(24 * 365 * 100))).ok());
  ASSERT_TRUE(node.put(with_ttl(StoreOnMemory::object(2, kMiB), milliseconds(0))).ok());
  EXPECT_FALSE(node.has(2));
  const auto pinned = client->pin(id_of(0));
  ASSERT_TRUE(pinned.ok());
  ASSERT_TRUE(eventually([&] { return !client->find(id_of(0)) && node.counter("expired_total") == 2; }));
  EXPECT_FALSE(node.has(0));
  EXPECT_FALSE(*client->pin(id_of(0)));
  EXPECT_TRUE(node.has(1));
  if (*pinned) {
    EXPECT_TRUE(node.intact(id_of(0), (*pinned)->places));
    EXPECT_EQ(node->stats().dram_used, 2 * kMiB);
    client->unpin(**pinned);
  }
  EXPECT_TRUE(eventually([&] { return node->stats().dram_used == kMiB; }));
  // It can be put again.
  EXPECT_TRUE(node.put(StoreOnMemory::object(0, kMiB), 1).ok());
  EXPECT_EQ(node->find(id_of(0))->digest, digest_for(id_of(0), 1));
}

TEST(LocalStore, GivesUpExtraReplicasFirst) {
  StoreOnMemory node(of_size(4 * kMiB));
  ASSERT_TRUE(node.put(0, kMiB).ok());
  NewObject extra = StoreOnMemory::object(1, kMiB);
  extra.extra = true;
  ASSERT_TRUE(node.put(extra).ok());
  ASSERT_TRUE(node.put(2, kMiB).ok() && node.put(3, kMiB / 2).ok());
  const auto used = node->pin(1, id_of(1), soon());
  EXPECT_TRUE(node->unpin(1, used->pin));
  ASSERT_TRUE(node.put(4, kMiB).ok());
  EXPECT_FALSE(node.has(1));
  EXPECT_TRUE(node.has(0) && node.has(2) && node.has(3));
}

TEST(LocalStore, HoldsNoMoreObjectsThanItMay) {
  NodeOptions options = of_size(4 * kMiB);
  options.max_objects = 4;
  StoreOnMemory node(options);
  for (std::uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(node.put(i, 100).ok());
  EXPECT_EQ(node->stats().objects, 4u);
  for (std::uint64_t i = 16; i < 20; ++i) EXPECT_TRUE(node.has(i));
  std::vector<PinId> pins;
  for (std::uint64_t i = 16; i < 20; ++i) pins.push_back(node->pin(1, id_of(i), soon())->pin);
  EXPECT_EQ(node.put(20, 100).code(), Code::kResourceExhausted);
  EXPECT_TRUE(node->unpin(1, pins[2]));
  EXPECT_TRUE(node.put(20, 100).ok());
  EXPECT_FALSE(node.has(18));
}

TEST(LocalStore, CountsWhatClientsUsed) {
  StoreOnMemory node(of_size(4 * kMiB));
  const auto client = node.new_client();
  for (std::uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(node.put(i, kMiB).ok());
  const std::vector<ObjectId> used{id_of(0)};
  client->accessed(used);
  client->unpin(**client->pin(id_of(1)));
  ASSERT_TRUE(node.put(3, 2 * kMiB).ok());
  EXPECT_TRUE(node.has(0) && node.has(1));
  EXPECT_FALSE(node.has(2));
}

TEST(LocalStore, SpreadsOverArenas) {
  StoreOnMemory node(of_size(8 * kMiB), 2);
  ASSERT_TRUE(node.put(0, 3 * kMiB).ok() && node.put(1, 3 * kMiB).ok());
  const auto a = node->pin(1, id_of(0), soon()), b = node->pin(1, id_of(1), soon());
  EXPECT_NE(a->places[0].arena, b->places[0].arena);
  // One that no single arena could hold.
  EXPECT_TRUE(node->unpin(1, a->pin) && node->unpin(1, b->pin));
  ASSERT_TRUE(node.put(2, 7 * kMiB + 5).ok());
  const auto wide = node->pin(1, id_of(2), soon());
  ASSERT_TRUE(wide.ok());
  EXPECT_EQ(wide->places.size(), 2u);
  EXPECT_TRUE(node.intact(id_of(2), wide->places));
  EXPECT_EQ(node.put(3, 8 * kMiB + 1).code(), Code::kOutOfRange);
}

TEST(LocalStore, PutsValuesIntoSeveralPlacesWhenMemoryIsFragmented) {
  StoreOnMemory node(of_size(kMiB));
  std::vector<Pinned> pins;
  for (std::uint64_t i = 0; i < 16; ++i) {
    ASSERT_TRUE(node.put(i, 64 << 10).ok());
    if (i % 2 == 0) pins.push_back(*node->pin(1, id_of(i), soon()));
  }
  ASSERT_TRUE(node.put(100, 300 << 10).ok());
  const auto client = node.new_client();
  const auto in_place = client->pin(id_of(100));
  ASSERT_TRUE(in_place.ok() && *in_place);
  EXPECT_GT((*in_place)->places.size(), 1u);
  EXPECT_LE((*in_place)->places.size(), 8u);
  EXPECT_TRUE(node.intact(id_of(100), (*in_place)->places));
  EXPECT_TRUE(node->remove(id_of(100)));
  for (const Pinned& pin : pins) EXPECT_TRUE(node.intact(id_of(0), {}) && node->unpin(1, pin.pin));
}

TEST(LocalStore, ListsAndDescribes) {
  StoreOnMemory node(of_size(4 * kMiB));
  for (const char* tenant : {"", "a"}) {
    for (std::uint64_t i = 0; i < 3000; ++i) {
      NewObject object = StoreOnMemory::object(i, 10);
      object.tenant = tenant;
      object.id = ObjectIds(tenant).of(object.key);
      if (i % 1000 == 0) object.tags = {"t", "thousand"};
      object.parent = i % 2 == 0 ? ObjectId{} : id_of(i - 1);
      object.depth = static_cast<std::uint32_t>(i % 2);
      object.replicas = 2;
      ASSERT_TRUE(node.put(object).ok());
    }
  }
  const auto infos = node->list("a", "object-2", "object-25", 3);
  ASSERT_EQ(infos.size(), 3u);
  EXPECT_EQ(infos[0].key, "object-250");
  EXPECT_EQ(infos[1].key, "object-2500");
  EXPECT_EQ(infos[2].key, "object-2501");
  EXPECT_EQ(infos[2].tenant, "a");
  EXPECT_EQ(infos[2].replicas, 2u);
  EXPECT_EQ(node->list("a", "", "", 10000).size(), 3000u);
  EXPECT_TRUE(node->list("b", "", "", 10).empty());
  EXPECT_TRUE(node->list("a", "", "", 0).empty());

  auto tagged = node->with_tag("a", "thousand");
  std::sort(tagged.begin(), tagged.end());
  std::vector<ObjectId> expected;
  for (const char* key : {"object-0", "object-1000", "object-2000"}) expected.push_back(ObjectIds("a").of(key));
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(tagged, expected);

  const auto described = node->describe(ObjectIds("a").of("object-2001"));
  ASSERT_TRUE(described);
  EXPECT_EQ(described->key, "object-2001");
  EXPECT_EQ(described->tenant, "a");
  EXPECT_EQ(described->parent, id_of(2000));
  EXPECT_EQ(described->depth, 1u);
  EXPECT_EQ(described->bytes, 10u);
  EXPECT_FALSE(described->expires_in);
  EXPECT_FALSE(node->describe(id_of(9999)));

  std::set<ObjectId> visited;
  node->for_each([&](const ObjectId& id, const Held& held) {
    EXPECT_EQ(held.bytes, 10u);
    return visited.insert(id).second;
  });
  EXPECT_EQ(visited.size(), 6000u);
  int visits = 0;
  node->for_each([&](const ObjectId&, const Held&) { return ++visits < 5; });
  EXPECT_EQ(visits, 5);
}

TEST(LocalStore, RefusesWhatItCannotDescribe) {
  StoreOnMemory node(of_size(kMiB));
  NewObject object = StoreOnMemory::object(1, 10);
  const auto code = [&] { return node->reserve(1, object, soon()).status().code(); };
  object.key = std::string(kMaxKeyBytes + 1, 'k');
  EXPECT_EQ(code(), Code::kInvalidArgument);
  object.key.pop_back();
  EXPECT_EQ(code(), Code::kOk);
  object.tags.assign(17, "t");
  EXPECT_EQ(code(), Code::kInvalidArgument);
  object.tags.assign(16, std::string(255, 't'));
  EXPECT_EQ(code(), Code::kOk);
  object.tags[3] += "t";
  EXPECT_EQ(code(), Code::kInvalidArgument);
  object.tags.clear();
  object.tenant = std::string(256, 't');
  EXPECT_EQ(code(), Code::kInvalidArgument);
  object.tenant.clear();
  object.replicas = 256;
  EXPECT_EQ(code(), Code::kInvalidArgument);
  object.replicas = 1;
  object.id = {};
  EXPECT_EQ(code(), Code::kInvalidArgument);
  node->end_session(1);
}

TEST(LocalStore, ServesNoMoreOnceClosed) {
  StoreOnMemory node(of_size(kMiB));
  ASSERT_TRUE(node.put(1, 10).ok());
  node->close();
  node->close();
  EXPECT_EQ(node.put(2, 10).code(), Code::kUnavailable);
  EXPECT_EQ(node->pin(1, id_of(1), soon()).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace kvferry::store
