#include <gtest/gtest.h>

#include "base/limits.h"
#include "transport/tcp/list_slots.h"
#include "transport/tcp/list_store.h"

namespace kvferry {
namespace {

std::vector<wire::PieceDescriptor> pieces(std::size_t count, std::uint64_t offset) {
  return std::vector<wire::PieceDescriptor>(count, {{1, 1}, offset, 8});
}

TEST(ListSlots, NamesWhatTheOwnerKnows) {
  ListSlots slots;
  EXPECT_EQ(slots.use(0, 1, 100).slot, 0u) << "a list without a name";
  EXPECT_EQ(slots.use(7, 1, 1).slot, 0u) << "not worth it";
  EXPECT_EQ(slots.use(7, 1, 100).slot, 1u);
  EXPECT_EQ(slots.use(7, 2, 100).slot, 2u);
  EXPECT_EQ(slots.use(8, 1, 100).slot, 3u);
  const ListSlots::Use again = slots.use(7, 2, 100);
  EXPECT_TRUE(again.known);
  EXPECT_EQ(again.slot, 2u);
}

// Whatever the one side does, the other agrees with; both stay within their limits.
TEST(ListSlots, AgreesWithTheStoreOfTheOwner) {
  ListSlots slots;
  ListStore store;
  std::size_t forgotten = 0;
  for (std::uint64_t list = 1; list < 3000; ++list) {
    for (const std::size_t count : {std::size_t{4}, std::size_t{kMaxPiecesPerRequest}, std::size_t{17}}) {
      const auto part = static_cast<std::uint32_t>(count);
      const auto sent = pieces(count, list * 1000 + count);
      const ListSlots::Use first = slots.use(list, part, count);
      ASSERT_FALSE(first.known);
      if (first.forget) {
        store.clear();
        ++forgotten;
      }
      ASSERT_TRUE(store.remember(first.slot, sent).ok()) << list;
      const ListSlots::Use second = slots.use(list, part, count);
      ASSERT_TRUE(second.known && !second.forget);
      const auto found = store.find(second.slot);
      ASSERT_TRUE(found.ok());
      ASSERT_TRUE(std::equal(found->begin(), found->end(), sent.begin(), sent.end()));
    }
  }
  EXPECT_GT(forgotten, 1u);
}

TEST(ListStore, RefusesWhatTheFormatDoesNotAllow) {
  ListStore store;
  EXPECT_EQ(store.find(1).status().code(), Code::kProtocolError);
  EXPECT_EQ(store.remember(2, pieces(4, 0)).code(), Code::kProtocolError) << "not the first free slot";
  ASSERT_TRUE(store.remember(1, pieces(4, 0)).ok());
  EXPECT_EQ(store.remember(1, pieces(4, 0)).code(), Code::kProtocolError) << "taken";
  std::uint32_t slot = 2;
  while (slot * kMaxPiecesPerRequest <= kMaxListPieces) {
    ASSERT_TRUE(store.remember(slot++, pieces(kMaxPiecesPerRequest, 0)).ok());
  }
  EXPECT_EQ(store.remember(slot, pieces(kMaxPiecesPerRequest, 0)).code(), Code::kProtocolError) << "too many pieces";
  store.clear();
  EXPECT_FALSE(store.find(1).ok());
  for (slot = 1; slot <= kMaxListSlots; ++slot) ASSERT_TRUE(store.remember(slot, pieces(1, 0)).ok());
  EXPECT_EQ(store.remember(slot, pieces(1, 0)).code(), Code::kProtocolError) << "too many slots";
}

}  // namespace
}  // namespace kvferry
