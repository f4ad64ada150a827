// The orders of messages between holders and owners that once left a copy nobody knew of, or forgot one: each played
// step by step by a member that does what the test says.
#include <gtest/gtest.h>

#include <thread>

#include "scripted_member.h"

namespace kvferry::store {
namespace {

using testing::digest_of_text;
using testing::kPatience;
using testing::make_node;
using testing::member_of;
using testing::node_options;
using testing::ScriptedMember;
using testing::soon;
using testing::TestClient;

using StoreRaces = testing::ScriptedPair;

// While the owner asks a holder whether it still has what it once said, the key is removed and put again.
TEST_F(StoreRaces, DoubtOfAnOldEntryLeavesTheOneAfterARemoval) {
  other_.know({member_of(*node_, "real")});
  scripted_.on_find = [&](const Find&) {
    if (step_.exchange(1) != 0) return;
    EXPECT_TRUE((*other_.ask(real(), Remove{{TestClient::id_of(key_)}}))->results.at(0).ok());
    EXPECT_EQ(scripted_.announce(key_, "new", true), Announce::Said::kTakenAgain);
  };  // and says that it holds nothing, as it was when it was asked
  meet();
  key_ = key_of(real());
  ASSERT_EQ(scripted_.announce(key_, "old", true), Announce::Said::kTaken);
  EXPECT_EQ(client_.put(real(), key_, "other").status.code(), Code::kConflict);
  EXPECT_EQ(step_, 1);
  EXPECT_TRUE(node_knows(key_));
}

// The removal reaches the holder between its announcement and its commit.
TEST_F(StoreRaces, APutThatIsOvertakenByARemovalIsAnnouncedAgain) {
  scripted_.on_announce = [&](const Announce&) {
    if (step_.exchange(1) != 0) return;
    EXPECT_TRUE(scripted_.call(Drop{{TestClient::id_of(key_)}}).ok());
  };
  meet();
  key_ = key_of(scripted_.self());
  EXPECT_TRUE(client_.put(real(), key_, "value").status.ok());
  EXPECT_TRUE(node_holds(key_));
  EXPECT_EQ(scripted_.announces, 2);
}

constexpr int kTimes = 12;

// However often that happens: what was never told while it was to stay is not visible.
TEST_F(StoreRaces, APutThatIsOvertakenManyTimesIsNotMadeVisibleUntold) {
  scripted_.on_announce = [&](const Announce&) {
    if (++step_ > kTimes) return;
    EXPECT_TRUE(scripted_.call(Drop{{TestClient::id_of(key_)}}).ok());
  };
  meet();
  key_ = key_of(scripted_.self());
  EXPECT_TRUE(client_.put(real(), key_, "value").status.ok());
  EXPECT_EQ(scripted_.announces, kTimes + 1);
  EXPECT_EQ(node_->stats().counters.at("unannounced_total"), 0u);
}

// The owner hears that a copy has left only after it has heard that there is another one.
TEST_F(StoreRaces, APutDoesNotBecomeVisibleWhileTheOwnerIsToldThatItLeft) {
  scripted_.on_retract = [&](const Retract&) {
    if (step_.exchange(1) != 0) return;
    const int before = scripted_.announces;
    again_ = std::jthread([&] {
      EXPECT_TRUE(other_.put(real(), key_, "value").status.ok());
      flag_ = true;
    });
    EXPECT_TRUE(soon([&] { return scripted_.announces > before + 1; }));  // it tries, and is held back
    EXPECT_FALSE(node_holds(key_));
    EXPECT_FALSE(flag_);
    step_ = scripted_.announces.load();
  };
  meet();
  other_.know(members_);
  key_ = key_of(scripted_.self());
  PutInline put;
  const std::string value = "value";
  put.items.push_back({TestClient::object(key_, value), digest_of_text(value), as_byte_view(value)});
  put.items[0].object.expires_in = milliseconds(10);
  ASSERT_TRUE(client_.ask(real(), put).ok());
  EXPECT_TRUE(soon([&] { return flag_.load(); }));
  again_.join();
  EXPECT_TRUE(node_holds(key_));
  EXPECT_GT(scripted_.announces, step_);  // once more afterwards
}

// A holder that does not hear of a removal is not believed until it has told all anew.
TEST_F(StoreRaces, WhoeverMissedARemovalTellsAllAnew) {
  node_ = make_node();  // that suspects soon
  scripted_.on_drop = [&](const Drop&) { EXPECT_TRUE(soon([&] { return flag_.load(); })); };
  meet();
  const std::string key = key_of(real());
  ASSERT_EQ(scripted_.announce(key, "value", true), Announce::Said::kTaken);
  const auto removed = client_.ask(real(), Remove{{TestClient::id_of(key)}});
  ASSERT_TRUE(removed.ok());
  EXPECT_EQ((*removed)->results.at(0).code(), Code::kUnavailable);
  const auto again = client_.ask(real(), Remove{{TestClient::id_of(key)}});  // nobody has heard of it meanwhile
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)->results.at(0).code(), Code::kUnavailable);
  flag_ = true;
  EXPECT_TRUE(soon([&] { return scripted_.asked_for_all > 0; }));
  scripted_.say_settled();  // of before
  EXPECT_TRUE(soon([&] { return node_->stats().degraded.empty(); }));
  EXPECT_FALSE(is_settled());
  EXPECT_EQ(scripted_.tell_all({ScriptedMember::item(key, "value")}),
            std::vector<Announce::Said>{Announce::Said::kRemoved});
  EXPECT_TRUE(is_settled());
  EXPECT_FALSE(node_knows(key));
}

// An owner may have to wait for a third member that stands still, and answer late for it: nobody takes it for dead
// while it answers PINGs. Two views of who is a member would mean two owners, and removals that one of them misses.
TEST_F(StoreRaces, AnOwnerThatWaitsForOthersIsNotSuspected) {
  NodeOptions options = node_options();
  options.suspect_after = milliseconds(2000);
  node_ = make_node(options);
  scripted_.on_announce = [&](const Announce&) {
    if (step_.exchange(1) == 0) std::this_thread::sleep_for(options.suspect_after + milliseconds(300));
  };
  meet();
  key_ = key_of(scripted_.self());
  EXPECT_TRUE(client_.put(real(), key_, "value").status.ok());
  EXPECT_EQ(scripted_.announces, 1);
  EXPECT_EQ(node_->stats().counters.at("suspicions_total"), 0u);
  EXPECT_EQ(node_->stats().counters.at("unannounced_total"), 0u);
}

// Two remove the same: the directory names nobody any more for the second one, and the holder has not dropped it yet.
TEST_F(StoreRaces, ARemovalWaitsForTheHoldersThatAnotherOneHasTold) {
  scripted_.on_drop = [&](const Drop&) {
    ++step_;
    EXPECT_TRUE(soon([&] { return flag_.load(); }));
  };
  meet();
  other_.know(members_);
  key_ = key_of(real());
  ASSERT_EQ(scripted_.announce(key_, "value", true), Announce::Said::kTaken);
  again_ = std::jthread([&] { EXPECT_TRUE(client_.remove(key_).ok()); });
  ASSERT_TRUE(soon([&] { return step_ == 1; }));
  const auto connection = other_.connection(real());
  ASSERT_TRUE(connection.ok());
  auto second = other_.rpc().start(*connection, Remove{{TestClient::id_of(key_)}}, deadline_in(kPatience));
  EXPECT_TRUE(soon([&] { return step_ == 2 || second.ready(); }));
  EXPECT_FALSE(second.ready());
  flag_ = true;
  const auto removed = second.finish();
  again_.join();
  ASSERT_TRUE(removed.ok()) << removed.status().to_string();
  EXPECT_TRUE((*removed)->results.at(0).ok());
}

class StoreCopies : public StoreRaces {
 protected:
  // A key that the other one owns, and lets be pinned.
  void SetUp() override {
    const std::vector<Member> members{member_of(*node_, "real"), scripted_.self()};
    client_.know(members);
    key_ = key_of(members[1]);
    scripted_.pinned_key = key_;
  }
  Code copy() {
    const auto done = client_.ask(real(), Pull{scripted_.self().node_id, {id()}, false, false, kPatience});
    EXPECT_TRUE(done.ok()) << done.status().to_string();
    return done.ok() ? (*done)->results.at(0).code() : done.status().code();
  }
  ObjectId id() const { return TestClient::id_of(key_); }
};

// The removal comes after the bytes were offered, and before there is anything here that it could take away.
TEST_F(StoreCopies, ACopyThatIsOvertakenByARemovalIsGivenUp) {
  scripted_.on_pin = [&] { EXPECT_TRUE(scripted_.call(Drop{{id()}}).ok()); };
  meet();
  EXPECT_EQ(copy(), Code::kNotFound);
  EXPECT_FALSE(node_holds(key_));
}

// The members have changed just now: whoever is asked for a copy may not have heard of the removal.
TEST_F(StoreCopies, WhatWasRemovedJustNowIsNotCopiedBeforeAllHaveHeardOfIt) {
  meet();
  EXPECT_EQ(copy(), Code::kOk);
  ASSERT_TRUE(scripted_.call(Drop{{id()}}).ok());
  EXPECT_EQ(copy(), Code::kUnavailable);
  EXPECT_FALSE(node_holds(key_));
  ASSERT_TRUE(scripted_.call(Removed{Removed::To::kKeep, {{id(), milliseconds(0), true}}}).ok());  // it is put again
  EXPECT_EQ(copy(), Code::kOk);
  EXPECT_TRUE(node_holds(key_));
}

// One that knows other members would forget what it is told.
TEST_F(StoreRaces, AMemberIsToldWhenItKnowsTheSameMembers) {
  meet();
  const std::string key = key_of(scripted_.self());
  ASSERT_TRUE(client_.put(real(), key, "value").status.ok());
  const int before = scripted_.announces;
  scripted_.heard_settled = false;
  scripted_.view = 7;
  node_->set_members(2, members_);
  EXPECT_TRUE(scripted_.call(MemberList{2, members_}).ok());  // asks for all
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_EQ(scripted_.announces, before);
  EXPECT_FALSE(scripted_.heard_settled);
  const std::vector<NodeId> both{real().node_id, scripted_.self().node_id};
  scripted_.view = members_fingerprint(both);
  EXPECT_TRUE(soon([&] { return scripted_.heard_settled && scripted_.announces == before + 1; }));
}

}  // namespace
}  // namespace kvferry::store
