// One node's shard of the directory, against a simple model; and who owns what.
#include "store/directory.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "store/rendezvous.h"

namespace kvferry::store {
namespace {

using Added = Directory::Added;

ObjectId id_of(std::uint64_t number) { return {number * 0x9e3779b97f4a7c15ull, number * 0xbf58476d1ce4e5b9ull + 1}; }

Directory make(std::optional<ContentDigest> own = std::nullopt) {
  return Directory([own](const ObjectId&) { return own; });
}

Directory::Announced object(std::uint64_t number, std::uint64_t digest = 1, bool fresh = false) {
  return {id_of(number), {digest, digest}, 100, 2, fresh};
}

TEST(Directory, KeepsOneDigestPerId) {
  Directory directory = make();
  EXPECT_EQ(directory.announce(object(1), 0).added, Added::kTaken);
  const auto again = directory.announce(object(1), 1);
  EXPECT_EQ(again.added, Added::kTaken);
  EXPECT_EQ(again.holders, 2u);
  EXPECT_EQ(directory.announce(object(1), 1).holders, 2u);
  EXPECT_EQ(directory.announce(object(1, 2), 2).added, Added::kConflict);
  EXPECT_EQ(directory.claim(object(1, 2, true), [] { FAIL(); }).added, Added::kConflict);
  bool committed = false;
  EXPECT_EQ(directory.claim(object(1), [&] { committed = true; }).added, Added::kTaken);
  EXPECT_TRUE(committed);
}

TEST(Directory, WhatTheNodeItselfHoldsCountsToo) {
  Directory directory = make(ContentDigest{7, 7});
  EXPECT_EQ(directory.announce(object(1, 8), 0).added, Added::kConflict);
  EXPECT_EQ(directory.announce(object(1, 7), 0).added, Added::kTaken);
}

TEST(Directory, RemembersWhatWasRemoved) {
  Directory directory = make();
  directory.announce(object(1), 3);
  const Clock::time_point now = Clock::now();
  EXPECT_EQ(directory.remove(id_of(1), now).holders, std::vector<HolderIndex>{3});
  EXPECT_TRUE(directory.remove(id_of(1), now).again);
  EXPECT_FALSE(directory.contains(id_of(1)));
  EXPECT_EQ(directory.announce(object(1), 4).added, Added::kRemoved);         // a holder that missed it
  EXPECT_EQ(directory.announce(object(1, 9, true), 4).added, Added::kTaken);  // put again
  EXPECT_EQ(directory.announce(object(1, 9), 5).added, Added::kTaken);
  directory.remove(id_of(2), now);
  directory.expire_tombstones(now + std::chrono::minutes(11));
  EXPECT_EQ(directory.announce(object(2), 4).added, Added::kTaken);
}

TEST(Directory, ListsWhatWasRemovedUntilItsOwnerHasHeard) {
  Directory directory = make();
  const Clock::time_point now = Clock::now();
  for (std::uint64_t number = 1; number < 5; ++number) directory.remove(id_of(number), now);
  directory.announce(object(2, 1, true), 4);  // put again: what its owner has of before is out of date all the same
  const auto even = [](const ObjectId& id) { return id == id_of(2) || id == id_of(4); };
  EXPECT_EQ(directory.removed(even).size(), 2u);
  directory.forget_removed(directory.removed(even));
  EXPECT_TRUE(directory.removed(even).empty());
  EXPECT_TRUE(directory.contains(id_of(2)));
  EXPECT_EQ(directory.announce(object(4), 4).added, Added::kTaken);
  EXPECT_EQ(directory.announce(object(3), 4).added, Added::kRemoved);
}

TEST(Directory, KeepsWhoAnnouncedWhileItWasDoubted) {
  Directory directory = make();
  directory.announce(object(1), 3);
  const auto before = directory.find(id_of(1));
  ASSERT_TRUE(before);
  directory.announce(object(1), 3);
  directory.retract_if_unchanged(id_of(1), 3, before->told);
  EXPECT_TRUE(directory.contains(id_of(1)));
  directory.retract_if_unchanged(id_of(1), 3, directory.find(id_of(1))->told);
  EXPECT_FALSE(directory.contains(id_of(1)));
}

// Removed and put again while a holder's word of before was doubted.
TEST(Directory, KeepsWhoAnnouncedAfterARemovalWhileTheOldEntryWasDoubted) {
  Directory directory = make();
  directory.announce(object(1), 3);
  const auto before = directory.find(id_of(1));
  ASSERT_TRUE(before);
  directory.remove(id_of(1), Clock::now());
  directory.announce(object(1, 2, true), 3);
  directory.retract_if_unchanged(id_of(1), 3, before->told);
  EXPECT_TRUE(directory.contains(id_of(1)));
}

TEST(Directory, RemembersABoundedNumberOfRemovals) {
  Directory directory = make();
  const Clock::time_point now = Clock::now();
  for (std::uint64_t i = 0; i < 300000; ++i) directory.remove(ObjectId{64 * i, i}, now + std::chrono::microseconds(i));
  EXPECT_LT(directory.memory_bytes(), 64u * 4200 * 100);
  EXPECT_EQ(directory.announce({{64 * 299999, 299999}, {}, 1, 1, false}, 0).added, Added::kRemoved);
}

TEST(Directory, AgreesWithAModelUnderRandomWork) {
  Directory directory = make();
  std::map<ObjectId, std::set<HolderIndex>> model;
  std::mt19937_64 random(5);
  for (int step = 0; step < 60000; ++step) {
    const std::uint64_t number = random() % 700;
    const auto holder = static_cast<HolderIndex>(random() % 7);
    switch (random() % 8) {
      case 0:
        directory.retract(id_of(number), holder);
        model[id_of(number)].erase(holder);
        break;
      case 1:
        if (step % 40 != 0) break;
        directory.drop_holder(holder);
        for (auto& [id, holders] : model) holders.erase(holder);
        break;
      default:
        directory.announce(object(number), holder);
        model[id_of(number)].insert(holder);
    }
  }
  std::uint64_t entries = 0;
  for (const auto& [id, holders] : model) {
    const auto found = directory.find(id);
    ASSERT_EQ(found.has_value(), !holders.empty());
    if (!found) continue;
    ++entries;
    EXPECT_EQ(std::set<HolderIndex>(found->holders.begin(), found->holders.end()), holders);
    EXPECT_EQ(found->holders.size(), holders.size());
  }
  EXPECT_EQ(directory.entries(), entries);
  directory.retain([](const ObjectId& id) { return id.lo % 2 == 0; });
  directory.for_each([](const ObjectId& id, const Location&) { EXPECT_EQ(id.lo % 2, 0u); });
}

TEST(Directory, TakesFewBytesPerEntry) {
  Directory directory = make();
  constexpr std::uint64_t kEntries = 400000;
  for (std::uint64_t i = 0; i < kEntries; ++i) directory.announce(object(i), static_cast<HolderIndex>(i % 3));
  EXPECT_EQ(directory.entries(), kEntries);
  RecordProperty("bytes_per_entry", static_cast<int>(directory.memory_bytes() / kEntries));
  EXPECT_LE(directory.memory_bytes() / kEntries, 58u);
}

std::vector<NodeId> nodes(std::size_t count) {
  std::vector<NodeId> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i].bytes.fill(static_cast<std::uint8_t>(i + 1));
  return out;
}

TEST(Rendezvous, TheOrderSaysWhoOwnsWhatWithoutTheOnesBefore) {
  auto all = nodes(5);
  for (std::uint64_t i = 0; i < 500; ++i) {
    auto left = all;
    for (const std::size_t next : rendezvous_order(id_of(i), all)) {
      const std::size_t owner = *rendezvous_owner(id_of(i), left);
      EXPECT_EQ(left[owner], all[next]);
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(owner));
    }
    EXPECT_TRUE(left.empty());
  }
}

TEST(Rendezvous, FingerprintIsOfTheSet) {
  auto some = nodes(3);
  const std::uint64_t before = members_fingerprint(some);
  std::swap(some[0], some[2]);
  EXPECT_EQ(members_fingerprint(some), before);
  some.pop_back();
  EXPECT_NE(members_fingerprint(some), before);
}

}  // namespace
}  // namespace kvferry::store
