// A node that stood still: what it holds may have been removed meanwhile, so that it says nothing of it, and clients of
// its host find nothing in place, until the other members count on it again.
#include <gtest/gtest.h>

#include <tuple>

#include "scripted_member.h"
#include "store/local_reader.h"

namespace kvferry::store::testing {
namespace {

class StorePause : public ScriptedPair {
 protected:
  void SetUp() override {
    NodeOptions options = node_options();
    options.suspect_after = milliseconds(1500);  // a refusal takes half of it
    node_ = make_node(options);
  }
  void TearDown() override {
    if (page_) node_->remove_page(*page_);
  }
  // Two objects of the node's, and it stands still.
  void hold_and_pause() {
    meet();
    for (const std::string& key : {kept_, gone_}) {
      ASSERT_TRUE(soon([&] { return client_.put(real(), key, "value").status.ok(); }));
    }
    auto page = node_->add_page();
    ASSERT_TRUE(page.ok());
    page_ = *page;
    auto reader = LocalReader::attach(node_->memory(), *page_, node_->node_id());
    ASSERT_TRUE(reader.ok()) << reader.status().to_string();
    reader_ = *std::move(reader);
    EXPECT_FALSE(reader_->knows_all());
    ASSERT_TRUE(soon([&] { return in_place(kept_) && in_place(gone_); }));
    scripted_.counts_on_it = false;
    node_->pulse().distrust();
  }
  bool in_place(const std::string& key) {
    const ObjectId id = TestClient::id_of(key);
    std::uint8_t there = 0;
    reader_->exists({&id, 1}, {&there, 1});
    const auto pin = reader_->pin(id);
    EXPECT_TRUE(pin.ok());
    if (pin.ok() && pin->has_value()) reader_->unpin(**pin);
    return there != 0 && reader_->find(id) && pin.ok() && pin->has_value();
  }
  // Of requests that are under way together: each is refused only after a while.
  template <typename... Requests>
  std::vector<Code> answers_to(const Requests&... requests) {
    const auto connection = client_.connection(real());
    EXPECT_TRUE(connection.ok());
    auto calls = std::make_tuple(client_.rpc().start(*connection, requests, deadline_in(kPatience))...);
    return std::apply([](auto&... call) { return std::vector<Code>{call.finish().status().code()...}; }, calls);
  }
  void count_on_it() {
    scripted_.counts_on_it = true;
    ASSERT_TRUE(soon([&] { return node_->stats().degraded.empty(); }));
  }

  const std::string kept_ = "kept", gone_ = "gone";
  std::optional<std::uint32_t> page_;
  std::unique_ptr<LocalReader> reader_;
};

TEST_F(StorePause, NothingIsToldOfWhatIsHeldUntilTheOthersCountOnTheNode) {
  hold_and_pause();
  const ObjectId id = TestClient::id_of(gone_);
  PutInline put;  // it is not "there already"
  put.items.push_back({TestClient::object(gone_, "value"), digest_of_text("value"), as_byte_view("value")});
  EXPECT_EQ(answers_to(Lookup{{id}, 1024}, Exists{{id}}, Match{{id}}, Find{{id}}, GetInline{{{id, 0, UINT64_MAX}}},
                       kvferry::store::Pin{{id}}, put),
            std::vector<Code>(7, Code::kUnavailable));
  EXPECT_FALSE(in_place(kept_));
  EXPECT_FALSE(in_place(gone_));
  EXPECT_FALSE(node_->stats().degraded.empty());
  EXPECT_TRUE(scripted_.call(Drop{{id}}).ok());  // what was removed meanwhile is handed over
  count_on_it();
  EXPECT_TRUE(soon([&] { return in_place(kept_); }));
  EXPECT_TRUE(node_knows(kept_));
  EXPECT_FALSE(in_place(gone_));
  EXPECT_FALSE(node_knows(gone_));
}

// The member must have counted on it after the pause, and have told it all again if it had not.
TEST_F(StorePause, ANodeThatMustBeToldAnewHasNotCaughtUp) {
  hold_and_pause();
  EXPECT_TRUE(scripted_.call(Announce{false, Announce::kTellsAll, {}}).ok());
  scripted_.counts_on_it = true;
  EXPECT_EQ(answers_to(Exists{{TestClient::id_of(kept_)}}), std::vector<Code>{Code::kUnavailable});
  scripted_.say_settled();
  EXPECT_TRUE(soon([&] { return node_knows(kept_); }));
}

// What others agreed on meanwhile does not fail because of an object that the node would not have any more.
TEST_F(StorePause, WhatTheNodeHeldYieldsToWhatOthersPutMeanwhile) {
  hold_and_pause();
  const auto put = scripted_.call(Announce{true, 0, {ScriptedMember::item(gone_, "new")}});
  EXPECT_EQ(put.status().code(), Code::kUnavailable);
  const auto told = scripted_.call(Announce{false, 0, {ScriptedMember::item(gone_, "new")}});
  ASSERT_TRUE(told.ok());
  EXPECT_EQ((*told)->results.at(0).said, Announce::Said::kTaken);
  EXPECT_FALSE(node_holds(gone_));
  EXPECT_TRUE(node_holds(kept_));
}

// It runs, and the other one has ended its connection to it, and answers all the same: it was slow, and is passed over.
TEST_F(StorePause, ANodeThatWasGivenUpAsSlowSaysNothingUntilItIsCountedOnAgain) {
  meet();
  ASSERT_TRUE(soon([&] { return client_.put(real(), kept_, "value").status.ok() && node_knows(kept_); }));
  ASSERT_TRUE(soon([&] { return scripted_.pings > 1; }));  // it is counted on
  scripted_.counts_on_it = false;
  scripted_.leave();
  EXPECT_TRUE(soon([&] { return !node_->pulse().vouches(); }));
  EXPECT_EQ(answers_to(Exists{{TestClient::id_of(kept_)}}), std::vector<Code>{Code::kUnavailable});
  scripted_.join(real());
  count_on_it();
  EXPECT_TRUE(soon([&] { return node_knows(kept_); }));
}

// Programs of its host have its memory mapped, and may be late to see that their connections have ended.
TEST_F(StorePause, NothingIsBelievedInPlaceOfANodeThatHasClosed) {
  const auto made = RpcEndpoint::create({}, nullptr, {1});
  ASSERT_TRUE(made.ok());
  RpcEndpoint& rpc = **made;
  const auto peer = rpc.engine().connect(node_->endpoint(), node_->node_id(), kPatience);
  ASSERT_TRUE(peer.ok()) << peer.status().to_string();
  Attach attach;
  attach.cluster = "local";
  const auto attached = rpc.call((*peer)->handle(), attach, deadline_in(kPatience));
  ASSERT_TRUE(attached.ok()) << attached.status().to_string();
  const auto index = (*peer)->map((*attached)->index, kPatience), pins = (*peer)->map((*attached)->pins, kPatience);
  ASSERT_TRUE(index.ok() && pins.ok());
  const auto reader = LocalReader::attach({*index, *pins, {}}, 0, node_->node_id());
  ASSERT_TRUE(reader.ok()) << reader.status().to_string();
  ASSERT_TRUE(client_.put(member_of(*node_, "real"), kept_, "value").status.ok());
  EXPECT_TRUE((*reader)->find(TestClient::id_of(kept_)));
  node_->close();
  EXPECT_FALSE((*reader)->find(TestClient::id_of(kept_)));
}

TEST_F(StorePause, ALoneNodeSpeaksForItselfAtAnyTime) {
  const Member alone = member_of(*node_, "real");
  client_.know({alone});
  ASSERT_TRUE(client_.put(alone, kept_, "value").status.ok());
  node_->pulse().distrust();
  EXPECT_TRUE(node_->pulse().vouches());
  EXPECT_EQ(client_.text(kept_), "value");
}

}  // namespace
}  // namespace kvferry::store::testing
