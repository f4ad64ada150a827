// Members learn of a change one after the other. Whatever each believes just then: what was put is found, and what was
// removed is not, neither where somebody has put it by newer members' lights nor at one that has left and still runs.
#include <gtest/gtest.h>

#include "scripted_member.h"

namespace kvferry::store {
namespace {

using testing::HeldUp;
using testing::node_options;
using testing::soon;
using testing::TestClient;
using testing::TestCluster;

class StoreViews : public ::testing::Test {
 protected:
  static NodeOptions patient() {
    NodeOptions options = node_options();
    options.suspect_after = milliseconds(8000);  // nobody is given up because the machine is slow
    return options;
  }
  void SetUp() override { ASSERT_TRUE(cluster_.settle()); }
  bool all_up(std::size_t index) {
    return soon([&] { return cluster_.node(index).stats().degraded.empty(); });
  }
  // A key whose owner among `members` is that one, and among the first three, `before`.
  std::string key_of(const std::vector<Member>& members, std::size_t owner, std::size_t before) {
    std::vector<Member> three{cluster_.member(0), cluster_.member(1), cluster_.member(2)};
    TestClient now, then;
    now.know(members);
    then.know(three);
    for (int i = 0;; ++i) {
      std::string key = "key-" + std::to_string(i);
      const bool fits = now.owner(key).node_id == cluster_.member(owner).node_id &&
                        then.owner(key).node_id == cluster_.member(before).node_id;
      if (fits) return key;
    }
  }

  TestCluster cluster_{3, patient()};
};

// A fourth one that only it and one of the three know of.
class StoreViewsJoin : public StoreViews {
 protected:
  static constexpr std::size_t kOwner = 0, kUnaware = 1, kAware = 2, kNew = 3;
  void SetUp() override {
    StoreViews::SetUp();
    old_.know(cluster_.living());
    cluster_.add(patient());
    new_.know(cluster_.living());
    cluster_.tell_only(kNew, cluster_.living());
    cluster_.tell_only(kAware, cluster_.living());
    ASSERT_TRUE(all_up(kNew));
    ASSERT_TRUE(all_up(kAware));
    key_ = key_of(cluster_.living(), kNew, kOwner);
  }
  void all_agree() {
    cluster_.tell();
    ASSERT_TRUE(cluster_.settle());
  }
  // Everywhere, at once and when all know the same members.
  void expect_gone_after_remove(TestClient& remover) {
    ASSERT_TRUE(remover.remove(key_).ok());
    EXPECT_EQ(cluster_.holders(key_), 0u);
    all_agree();
    EXPECT_EQ(cluster_.holders(key_), 0u);
  }
  TestClient old_, new_;
  std::string key_;
};

TEST_F(StoreViewsJoin, WhatWasPutUnderANewOwnerIsFoundByWhoeverAsksTheOldOne) {
  ASSERT_TRUE(new_.put(cluster_.member(kAware), key_, "value").status.ok());
  EXPECT_EQ(old_.text(key_), "value");
}

TEST_F(StoreViewsJoin, WhatWasPutUnderANewOwnerIsRemovedByTheOldOne) {
  ASSERT_TRUE(new_.put(cluster_.member(kAware), key_, "value").status.ok());
  expect_gone_after_remove(old_);
}

TEST_F(StoreViewsJoin, WhatTheNewOneHoldsItselfIsRemovedByTheOldOwner) {
  ASSERT_TRUE(new_.put(cluster_.member(kNew), key_, "value").status.ok());
  expect_gone_after_remove(old_);
}

TEST_F(StoreViewsJoin, WhatWasPutUnderTheOldOwnerIsRemovedByTheNewOne) {
  ASSERT_TRUE(old_.put(cluster_.member(kUnaware), key_, "value").status.ok());
  expect_gone_after_remove(new_);
}

// One that was drained leaves: the others have heard of it, and it runs on, with clients of its own. The thread by
// which it would notice that the others are gone gets no processor.
class StoreViewsLeave : public StoreViews {
 protected:
  static constexpr std::size_t kLeaving = 3;
  void SetUp() override {
    cluster_.add(patient());
    cluster_.tell();
    StoreViews::SetUp();
    old_.know(cluster_.living());
    new_.know(cluster_.living_but(kLeaving));
  }
  void TearDown() override {
    if (page_) cluster_.node(kLeaving).remove_page(*page_);
  }
  void leave() {
    held_up_.hold(cluster_.node(kLeaving), cluster_.member(kLeaving));
    cluster_.tell_all_but(kLeaving);
  }
  bool in_place(std::string_view key) {
    NodeImpl& node = cluster_.node(kLeaving);
    if (!page_) page_ = *node.add_page();
    const auto reader = LocalReader::attach(node.memory(), *page_, node.node_id());
    EXPECT_TRUE(reader.ok()) << reader.status().to_string();
    return reader.ok() && (*reader)->find(TestClient::id_of(key));
  }

  std::optional<std::uint32_t> page_;
  HeldUp held_up_;
  TestClient old_, new_;
};

// Its clients look at something in place: the node has brought a copy, drained or not.
TEST_F(StoreViewsLeave, ACopyAtOneThatHasLeftIsRemovedToo) {
  const std::string key = key_of(cluster_.living(), 0, 0);
  ASSERT_TRUE(old_.put(cluster_.member(1), key, "value").status.ok());
  ASSERT_TRUE(cluster_.node(kLeaving).drain(testing::kPatience).ok());
  ASSERT_TRUE(
      old_.ask(cluster_.member(kLeaving), Pull{{}, {TestClient::id_of(key)}, false, false, testing::kPatience}).ok());
  leave();
  ASSERT_TRUE(cluster_.holds(kLeaving, key));
  ASSERT_TRUE(in_place(key));
  ASSERT_TRUE(new_.remove(key).ok());
  EXPECT_FALSE(in_place(key));
  EXPECT_EQ(cluster_.holders(key), 0u);
}

TEST_F(StoreViewsLeave, OneThatHasLeftRemovesWhatItWasNotToldOf) {
  const std::string key = key_of(cluster_.living(), kLeaving, 0);
  leave();
  ASSERT_TRUE(new_.put(cluster_.member(1), key, "value").status.ok());
  EXPECT_EQ(old_.text(key), "value");
  ASSERT_TRUE(old_.remove(key).ok());
  EXPECT_EQ(cluster_.holders(key), 0u);
  EXPECT_EQ(new_.get(key).status().code(), Code::kNotFound);
}

// One that is attached and no member did not answer once: nobody waits for it again before it says something, and it is
// told all the same.
TEST(StoreStrangers, WhoWasSlowOnceIsStillTold) {
  struct Heard {
    std::atomic<bool> slow{true};
    std::mutex mutex;
    std::vector<ObjectId> ids;  // guarded by mutex
  } heard;
  TestCluster cluster(1);
  testing::ScriptedMember stranger;
  stranger.on_drop = [&heard](const Drop& drop) {
    (void)soon([&] { return !heard.slow.load(); });
    const std::lock_guard lock(heard.mutex);
    heard.ids.insert(heard.ids.end(), drop.ids.begin(), drop.ids.end());
  };
  stranger.join(cluster.member(0));
  TestClient client;
  client.know(cluster.living());
  ASSERT_TRUE(client.put(cluster.member(0), "first", "value").status.ok());
  ASSERT_TRUE(client.put(cluster.member(0), "second", "value").status.ok());
  EXPECT_EQ(client.remove("first").code(), Code::kUnavailable);
  EXPECT_TRUE(client.remove("second").ok());
  heard.slow = false;
  EXPECT_TRUE(soon([&] {
    const std::lock_guard lock(heard.mutex);
    return std::ranges::find(heard.ids, TestClient::id_of("second")) != heard.ids.end();
  }));
}

}  // namespace
}  // namespace kvferry::store
