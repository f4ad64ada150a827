#include "engine/inbox.h"

#include <gtest/gtest.h>

namespace kvferry {
namespace {

constexpr milliseconds kNoWait{0};

std::size_t fill_up(Inbox& inbox, std::uint64_t peer, std::size_t bytes) {
  std::size_t taken = 0;
  while (inbox.push({peer, std::string(bytes, 'x')}).ok()) ++taken;
  return taken;
}

TEST(Inbox, OneSenderMayUseAllOfIt) {
  Inbox inbox;
  EXPECT_EQ(fill_up(inbox, 1, 1u << 20), Inbox::kMaxBytes >> 20);
  Inbox other;
  EXPECT_EQ(fill_up(other, 1, 0), Inbox::kMaxMessages);
}

TEST(Inbox, AFloodingSenderDoesNotKeepOthersOut) {
  for (const std::size_t bytes : {std::size_t{1} << 20, std::size_t{100}}) {
    Inbox inbox;
    fill_up(inbox, 1, bytes);
    for (std::uint64_t peer = 2; peer < 12; ++peer) EXPECT_TRUE(inbox.push({peer, "hello"}).ok()) << peer;
    EXPECT_FALSE(inbox.push({1, std::string(bytes, 'x')}).ok());
    const std::size_t taken = fill_up(inbox, 2, bytes);
    EXPECT_GT(taken, 0u);
    EXPECT_LE(taken, (bytes > 1000 ? Inbox::kMaxBytes >> 20 : Inbox::kMaxMessages) / 11);
  }
}

TEST(Inbox, ARefusalSaysWhatWaitsAndWhatToDo) {
  Inbox inbox;
  ASSERT_TRUE(inbox.push({2, "hello"}).ok());
  fill_up(inbox, 1, 1u << 20);
  const Status refused = inbox.push({1, std::string(1u << 20, 'x')});
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_EQ(refused.message(),
            "63 of its messages wait here unread, 64 (66060293 bytes) with those of others; no more are kept (65536, "
            "67108864 bytes): the application must take them by next_message, best in a thread that does nothing else");
}

TEST(Inbox, RoomComesBackInTheOrderOfTheMessages) {
  Inbox inbox;
  ASSERT_TRUE(inbox.push({1, "first"}).ok() && inbox.push({2, "second"}).ok());
  fill_up(inbox, 1, 1u << 20);
  EXPECT_EQ(inbox.pop(kNoWait)->body, "first");
  EXPECT_EQ(inbox.pop(kNoWait)->body, "second");
  EXPECT_EQ(inbox.pop(kNoWait)->peer, 1u);
  EXPECT_TRUE(inbox.push({1, std::string(1u << 20, 'x')}).ok()) << "alone again";
  while (inbox.pop(kNoWait)) {
  }
  EXPECT_EQ(fill_up(inbox, 3, 1u << 20), Inbox::kMaxBytes >> 20);
}

}  // namespace
}  // namespace kvferry
