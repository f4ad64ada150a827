// What was removed stays so when its owner dies, when another node becomes the owner, and for whoever missed it; and
// what was put again after that is never taken for removed.
#include <gtest/gtest.h>

#include "scripted_member.h"

namespace kvferry::store {
namespace {

using testing::digest_of_text;
using testing::node_options;
using testing::ScriptedMember;
using testing::soon;
using testing::TestClient;
using testing::TestCluster;

constexpr int kKeys = 40;

std::string key_of(int number) { return "key-" + std::to_string(number); }

// Nodes of which one misses removals, and is back after the ownership of what was removed has moved.
class StoreRemovals : public ::testing::Test {
 protected:
  static constexpr std::size_t kAway = 3;
  // Nobody but it is away: a machine that gives a node no processor is no second fault.
  static NodeOptions patient() {
    NodeOptions options = node_options();
    options.suspect_after = milliseconds(8000);
    return options;
  }

  void SetUp() override {
    client_.know(cluster_.living());
    ASSERT_TRUE(cluster_.settle());
    for (int i = 0; i < kKeys; ++i) {
      ASSERT_TRUE(soon([&] { return client_.put(cluster_.member(kAway), key_of(i), "old").status.ok(); }));
    }
  }
  // The others go on without it, and remove all that it holds.
  void remove_without_it() {
    others_settle();
    for (int i = 0; i < kKeys; ++i) {
      ASSERT_TRUE(soon([&] { return client_.remove(key_of(i)).ok(); })) << key_of(i);
    }
    for (int i = 0; i < kKeys; ++i) ASSERT_TRUE(cluster_.holds(kAway, key_of(i)));
  }
  void put_half_again() {
    for (int i = 0; i < kKeys; i += 2) {
      ASSERT_TRUE(soon([&] { return client_.put(cluster_.member(holder_), key_of(i), "new").status.ok(); }));
    }
  }
  void comes_back() {
    cluster_.node(kAway).pulse().distrust();  // it was given up, and finds that out
    away_.let_go();
    cluster_.tell();
    client_.know(cluster_.living());
    ASSERT_TRUE(cluster_.settle());
  }
  // Among those that are members without it.
  void others_settle() {
    away_.hold(cluster_.node(kAway), cluster_.member(kAway));
    cluster_.tell_all_but(kAway);
    client_.know(cluster_.living_but(kAway));
    cluster_.cut_off(kAway);
    ASSERT_TRUE(soon([&] {
      for (std::size_t i = 0; i < cluster_.size(); ++i) {
        if (i != kAway && cluster_.lives(i) && !cluster_.node(i).is_settled()) return false;
      }
      return true;
    }));
  }
  void expect_all_gone() {
    for (int i = 0; i < kKeys; ++i) {
      EXPECT_TRUE(soon([&] { return cluster_.holders(key_of(i)) == 0; })) << key_of(i);
      EXPECT_EQ(client_.get(key_of(i)).status().code(), Code::kNotFound) << key_of(i);
    }
  }
  void expect_half_again() {
    for (int i = 0; i < kKeys; ++i) {
      if (i % 2 == 0) {
        EXPECT_EQ(client_.text(key_of(i)), "new") << key_of(i);
      } else {
        EXPECT_EQ(client_.get(key_of(i)).status().code(), Code::kNotFound) << key_of(i);
      }
    }
    EXPECT_TRUE(soon([&] { return !cluster_.holds(kAway, key_of(1)); }));
  }

  const std::size_t holder_ = 1;  // of what is put again
  TestCluster cluster_{4, patient()};
  TestClient client_;
  testing::HeldUp away_;
};

TEST_F(StoreRemovals, AreRememberedWhenTheirOwnersDie) {
  remove_without_it();
  cluster_.kill(0);
  comes_back();
  expect_all_gone();
}

TEST_F(StoreRemovals, AreRememberedWhenOneOwnerAfterTheOtherDies) {
  remove_without_it();
  cluster_.kill(0);
  others_settle();
  cluster_.kill(2);
  comes_back();
  expect_all_gone();
}

TEST_F(StoreRemovals, AreHandedToAnOwnerThatJoins) {
  remove_without_it();
  cluster_.add(patient());
  cluster_.add(patient());
  others_settle();
  comes_back();
  expect_all_gone();
}

TEST_F(StoreRemovals, WhatWasPutAgainOutlivesItsOwner) {
  remove_without_it();
  put_half_again();
  cluster_.kill(0);
  others_settle();
  comes_back();
  expect_half_again();
}

TEST_F(StoreRemovals, WhatWasPutAgainIsFoundByAnOwnerThatJoins) {
  remove_without_it();
  put_half_again();
  cluster_.add(patient());
  others_settle();
  comes_back();
  expect_half_again();
}

// Ownership moves away and back, with removals and puts on the way.
TEST_F(StoreRemovals, AnOwnerThatIsBackKnowsWhatWasPutWithoutIt) {
  for (int i = 0; i < kKeys; ++i) ASSERT_TRUE(soon([&] { return client_.remove(key_of(i)).ok(); }));
  others_settle();  // it owns some of them, and remembers that they were removed
  put_half_again();
  comes_back();
  expect_half_again();
}

// Beside a real node: what it says and hears, message by message.
class StoreRemovalMessages : public testing::ScriptedPair {
 protected:
  using To = Removed::To;
  using Said = Announce::Said;
  using Heard = std::vector<ScriptedMember::HeardRemoval>;

  void SetUp() override { meet(); }
  Status tell(To to, std::vector<Removed::Item> items) {
    return scripted_.call(Removed{to, std::move(items)}).status();
  }
};

TEST_F(StoreRemovalMessages, WhoeverWouldOwnItNextHearsOfARemovalBeforeItIsAnswered) {
  const std::string key = key_of(real());
  const ObjectId id = TestClient::id_of(key);
  ASSERT_EQ(scripted_.announce(key, "value", true), Said::kTaken);
  ASSERT_TRUE(client_.remove(key).ok());
  EXPECT_EQ(scripted_.removals(), (Heard{{To::kKeep, id, false}}));
  EXPECT_EQ(scripted_.announce(key, "value", false), Said::kRemoved);
  EXPECT_EQ(scripted_.announce(key, "new", true), Said::kTakenAgain);
  EXPECT_TRUE(soon([&] { return scripted_.removals() == Heard{{To::kKeep, id, false}, {To::kKeep, id, true}}; }));
  EXPECT_EQ(scripted_.announce(key, "new", true), Said::kTaken);
}

TEST_F(StoreRemovalMessages, WhatWasHandedOverIsRefusedToWhoeverMissedIt) {
  const std::string key = key_of(real());
  ASSERT_EQ(scripted_.announce(key, "value", false), Said::kTaken);  // it came sooner than this:
  ASSERT_TRUE(tell(To::kOwner, {{TestClient::id_of(key), testing::kPatience, false}}).ok());
  EXPECT_FALSE(node_knows(key));
  EXPECT_EQ(scripted_.announce(key, "value", false), Said::kRemoved);
}

TEST_F(StoreRemovalMessages, WhatAnOwnerKeptHereCountsWhenItHasLeft) {
  const std::string key = key_of(scripted_.self());
  const ObjectId id = TestClient::id_of(key);
  ASSERT_TRUE(tell(To::kKeep, {{id, milliseconds(5), false}}).ok());
  node_->set_members(2, {real()});
  EXPECT_EQ(scripted_.announce(key, "value", false), Said::kRemoved);
  node_->set_members(3, members_);  // and when that one is back, it is handed over
  const ScriptedMember::HeardRemoval told{To::kOwner, id, false};
  EXPECT_TRUE(soon([&] { return std::ranges::count(scripted_.removals(), told) > 0; }));
}

// Whoever asks it knows other members, and takes this one for the owner.
TEST_F(StoreRemovalMessages, WhatAnOwnerKeptHereIsNotCopiedMeanwhile) {
  const std::string key = key_of(scripted_.self());
  const ObjectId id = TestClient::id_of(key);
  ASSERT_TRUE(tell(To::kKeep, {{id, milliseconds(5), false}}).ok());
  EXPECT_EQ(scripted_.announce(key, "value", false), Said::kRemoved);
  ASSERT_TRUE(tell(To::kKeep, {{id, milliseconds(0), true}}).ok());
  EXPECT_EQ(scripted_.announce(key, "value", false), Said::kTaken);
}

TEST_F(StoreRemovalMessages, WhatAnOwnerTookBackDoesNot) {
  const std::string key = key_of(scripted_.self());
  const ObjectId id = TestClient::id_of(key);
  ASSERT_TRUE(tell(To::kKeep, {{id, milliseconds(5), false}, {id, milliseconds(0), true}}).ok());
  node_->set_members(2, {real()});
  EXPECT_EQ(scripted_.announce(key, "value", false), Said::kTaken);
}

// It was away when this was put again, and believes what it heard before.
TEST_F(StoreRemovalMessages, WhatWasPutAgainIsToldAsSuchToAnOwnerThatDoesNotKnow) {
  scripted_.says_to_fresh = Said::kTakenAgain;
  scripted_.says_to_held = Said::kRemoved;
  const std::string key = key_of(scripted_.self());
  ASSERT_TRUE(client_.put(real(), key, "value").status.ok());
  ASSERT_EQ(scripted_.announces, 1);
  node_->set_members(2, {real()});
  node_->set_members(3, members_);
  EXPECT_TRUE(soon([&] { return scripted_.announces >= 3; }));  // as held, as put
  EXPECT_TRUE(node_holds(key));
  EXPECT_TRUE(scripted_.call(Drop{{TestClient::id_of(key)}}).ok());
  EXPECT_FALSE(node_holds(key));
}

}  // namespace
}  // namespace kvferry::store
