#include "store/extent_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace kvferry::store {
namespace {

constexpr std::uint64_t kUnit = ExtentAllocator::kUnit;
constexpr std::uint64_t kPage = ExtentAllocator::kPage;
constexpr std::uint64_t kHuge = ExtentAllocator::kHugePage;

// Whether each unit of the arena is given out.
class Model {
 public:
  explicit Model(std::uint64_t length) : units_(length / kUnit, false), pages_(length / kPage + 1, 0) {}

  bool set(const Extent& extent, bool used) {
    for (std::uint64_t at = extent.offset; at < extent.end(); at += kUnit) {
      if (at / kUnit >= units_.size() || units_[at / kUnit] == used) return false;
      units_[at / kUnit] = used;
      pages_[at / kPage] += used ? 1 : -1;
    }
    return true;
  }
  std::uint64_t used() const {
    return static_cast<std::uint64_t>(std::count(units_.begin(), units_.end(), true)) * kUnit;
  }
  std::uint64_t longest_run_of_pages() const {
    std::uint64_t longest = 0;
    std::uint64_t run = 0;
    for (std::size_t page = 0; page + 1 < pages_.size(); ++page) {
      run = pages_[page] == 0 ? run + 1 : 0;
      longest = std::max(longest, run);
    }
    return longest * kPage;
  }

 private:
  std::vector<bool> units_;
  std::vector<int> pages_;  // units given out of each page
};

std::vector<Extent> fill(ExtentAllocator& allocator, std::uint64_t bytes) {
  std::vector<Extent> extents;
  while (const auto list = allocator.allocate(bytes)) extents.insert(extents.end(), list->begin(), list->end());
  return extents;
}

TEST(ExtentAllocator, AnEmptyArenaIsOneExtent) {
  const ExtentAllocator allocator(10 * kPage);
  EXPECT_EQ(allocator.capacity(), 10 * kPage);
  EXPECT_EQ(allocator.free_bytes(), 10 * kPage);
  EXPECT_EQ(allocator.largest_free(), 10 * kPage);
  EXPECT_EQ(allocator.free_extents(), 1U);
  EXPECT_TRUE(allocator.check().ok());
}

TEST(ExtentAllocator, AnArenaOfNoBytesHoldsOnlyValuesOfNoBytes) {
  ExtentAllocator allocator(63);
  EXPECT_EQ(allocator.capacity(), 0U);
  ASSERT_TRUE(allocator.allocate(0).has_value());
  EXPECT_TRUE(allocator.allocate(0)->empty());
  EXPECT_FALSE(allocator.allocate(1).has_value());
}

TEST(ExtentAllocator, SizesAreRoundedToUnitsAndFromAPageOnToPages) {
  EXPECT_EQ(ExtentAllocator::rounded(0), 0U);
  EXPECT_EQ(ExtentAllocator::rounded(1), 64U);
  EXPECT_EQ(ExtentAllocator::rounded(64), 64U);
  EXPECT_EQ(ExtentAllocator::rounded(4095), 4096U);
  EXPECT_EQ(ExtentAllocator::rounded(4097), 8192U);
  EXPECT_EQ(ExtentAllocator::rounded((std::uint64_t{2} << 30) + 1), (std::uint64_t{2} << 30) + kPage);
  EXPECT_GE(ExtentAllocator::rounded(UINT64_MAX), UINT64_MAX - kPage);
}

TEST(ExtentAllocator, SmallValuesShareAPageAtTheStart) {
  ExtentAllocator allocator(64 * kPage);
  for (std::uint64_t i = 0; i < 32; ++i) {
    const auto list = allocator.allocate(128);
    ASSERT_TRUE(list.has_value());
    EXPECT_EQ((*list)[0], (Extent{i * 128, 128}));
  }
  EXPECT_EQ(allocator.largest_free(), 63 * kPage);
}

TEST(ExtentAllocator, LargeValuesComeFromTheEndInWholePages) {
  ExtentAllocator allocator(64 * kPage);
  EXPECT_EQ((*allocator.allocate(5000))[0], (Extent{62 * kPage, 2 * kPage}));
  EXPECT_EQ((*allocator.allocate(kPage))[0], (Extent{61 * kPage, kPage}));
}

TEST(ExtentAllocator, HugeValuesBeginAtAHugePageWhereOneIsFree) {
  ExtentAllocator allocator(8 * kHuge);
  ASSERT_TRUE(allocator.allocate(kPage).has_value());
  EXPECT_EQ((*allocator.allocate(kHuge))[0], (Extent{6 * kHuge, kHuge}));
  EXPECT_EQ((*allocator.allocate(kHuge + 1))[0], (Extent{4 * kHuge, kHuge + kPage}));
  ASSERT_TRUE(allocator.allocate(4 * kHuge - kPage).has_value());
  ASSERT_EQ(allocator.largest_free(), kHuge - kPage);
}

TEST(ExtentAllocator, HugeValuesDoWithoutAHugePageWhereNoneIsFree) {
  ExtentAllocator allocator(2 * kHuge);
  const Extent top = (*allocator.allocate(kPage))[0];
  const Extent bottom = (*allocator.allocate(kPage / 2))[0];
  const auto list = allocator.allocate(2 * kHuge - 2 * kPage);
  ASSERT_TRUE(list.has_value());
  ASSERT_EQ(list->size(), 1U);
  EXPECT_EQ((*list)[0].offset, kPage);
  EXPECT_EQ((*list)[0].end(), top.offset);
  EXPECT_EQ(bottom.offset, 0U);
}

TEST(ExtentAllocator, NeighboursBecomeOneExtentInAnyOrder) {
  for (const std::vector<int>& order : std::vector<std::vector<int>>{{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 2, 0}}) {
    ExtentAllocator allocator(3 * kPage);
    std::vector<Extent> extents = fill(allocator, kPage);
    ASSERT_EQ(extents.size(), 3U);
    EXPECT_EQ(allocator.free_extents(), 0U);
    for (const int i : order) ASSERT_TRUE(allocator.free(extents[static_cast<std::size_t>(i)]).ok());
    EXPECT_EQ(allocator.free_extents(), 1U);
    EXPECT_EQ(allocator.largest_free(), 3 * kPage);
  }
}

TEST(ExtentAllocator, WhatWasSmallServesLargeAgain) {
  ExtentAllocator allocator(1u << 20);
  const std::vector<Extent> extents = fill(allocator, 64);
  EXPECT_EQ(extents.size(), (1u << 20) / 64);
  for (const Extent& extent : extents) ASSERT_TRUE(allocator.free(extent).ok());
  EXPECT_EQ(allocator.allocate(1u << 20)->size(), 1U);
}

TEST(ExtentAllocator, FreeingWhatIsFreeOrNotInTheArenaIsRefused) {
  ExtentAllocator allocator(16 * kPage);
  const Extent extent = (*allocator.allocate(2 * kPage))[0];
  const auto refused = [&](const Extent& what) { return allocator.free(what).code() == Code::kInvalidArgument; };
  EXPECT_TRUE(refused({extent.offset - kPage, 2 * kPage}));
  EXPECT_TRUE(refused({extent.offset, 3 * kPage}));
  EXPECT_TRUE(refused({extent.offset, 0}));
  EXPECT_TRUE(refused({extent.offset + 1, kPage}));
  EXPECT_TRUE(refused({extent.offset, UINT64_MAX - 63}));
  EXPECT_TRUE(refused({UINT64_MAX - 63, 64}));
  EXPECT_TRUE(allocator.free({extent.offset, kPage}).ok());
  EXPECT_TRUE(refused(extent));
  EXPECT_TRUE(allocator.free({extent.offset + kPage, kPage}).ok());
  EXPECT_TRUE(refused(extent));
  EXPECT_EQ(allocator.used(), 0U);
  EXPECT_TRUE(allocator.check().ok());
}

TEST(ExtentAllocator, AValueIsSplitOnlyWhereNoExtentIsLongEnoughAndIntoFewPieces) {
  ExtentAllocator allocator(64 * kPage);
  const std::vector<Extent> pages = fill(allocator, kPage);
  for (std::size_t i = 0; i < pages.size(); i += 2) ASSERT_TRUE(allocator.free(pages[i]).ok());
  EXPECT_EQ(allocator.largest_free(), kPage);
  const std::uint64_t before = allocator.free_bytes();
  EXPECT_FALSE(allocator.allocate((kMaxExtents + 1) * kPage).has_value());  // enough bytes, too many pieces
  EXPECT_EQ(allocator.free_bytes(), before);
  ASSERT_TRUE(allocator.check().ok());
  const auto list = allocator.allocate(kMaxExtents * kPage - 5);
  ASSERT_TRUE(list.has_value());
  EXPECT_EQ(list->size(), kMaxExtents);
  EXPECT_EQ(list->length(), kMaxExtents * kPage);
}

TEST(ExtentAllocator, PiecesOfAValueAreWholePages) {
  ExtentAllocator allocator(8 * kPage);
  const std::vector<Extent> units = fill(allocator, 64);
  for (const Extent& unit : units) {  // holes of almost two pages: one page of each is whole, at the most
    const bool kept = unit.offset % (2 * kPage) == kUnit;
    ASSERT_TRUE(kept || allocator.free(unit).ok());
  }
  const auto list = allocator.allocate(3 * kPage);
  ASSERT_TRUE(list.has_value());
  EXPECT_EQ(list->size(), 3U);
  for (const Extent& extent : *list) EXPECT_EQ(extent.offset % kPage, 0U);
}

TEST(ExtentAllocator, ABookOfTheWorstFragmentationStaysSmall) {
  constexpr std::uint64_t kCount = 100'000;
  ExtentAllocator allocator(kCount * 64);
  const std::vector<Extent> units = fill(allocator, 64);
  ASSERT_EQ(units.size(), kCount);
  for (std::size_t i = 0; i < kCount; i += 2) ASSERT_TRUE(allocator.free(units[i]).ok());
  EXPECT_EQ(allocator.free_extents(), kCount / 2);
  EXPECT_LT(allocator.memory_bytes(), 40 * kCount / 2);
  EXPECT_FALSE(allocator.allocate(65).has_value());
  for (std::size_t i = 0; i < kCount / 2; ++i) ASSERT_TRUE(allocator.allocate(64).has_value());
  EXPECT_EQ(allocator.free_bytes(), 0U);
  ASSERT_TRUE(allocator.check().ok());
  for (const Extent& unit : units) ASSERT_TRUE(allocator.free(unit).ok());
  EXPECT_EQ(allocator.free_extents(), 1U);
  EXPECT_LT(allocator.memory_bytes(), 40 * (kCount / 2 + 1));
}

TEST(ExtentAllocator, AnArenaOfManyGibibytesIsHeldByItsOffsets) {
  constexpr std::uint64_t kLength = std::uint64_t{4} << 40;
  ExtentAllocator allocator(kLength);
  EXPECT_EQ(allocator.largest_free(), kLength);
  const auto list = allocator.allocate((std::uint64_t{300} << 30) + 1);
  ASSERT_TRUE(list.has_value());
  EXPECT_EQ(list->size(), 1U);
  ASSERT_TRUE(allocator.allocate(100).has_value());
  ASSERT_TRUE(allocator.free((*list)[0]).ok());
  EXPECT_EQ(allocator.free_bytes(), kLength - 128);
}

std::uint64_t any_size(std::mt19937_64& random) {
  switch (random() % 4) {
    case 0:
      return random() % 300;
    case 1:
      return random() % 5000;
    case 2:
      return random() % (64 * kPage);
    default:
      return kHuge - 3 * kPage + random() % (6 * kPage);
  }
}

void allocate_checked(ExtentAllocator& allocator, Model& model, std::uint64_t bytes, std::vector<ExtentList>& held) {
  const std::uint64_t pages = model.longest_run_of_pages();
  const auto list = allocator.allocate(bytes);
  if (!list) {
    ASSERT_TRUE(bytes < kPage || pages < ExtentAllocator::rounded(bytes)) << bytes << " would have fitted";
    return;
  }
  ASSERT_EQ(list->length(), ExtentAllocator::rounded(bytes));
  ASSERT_EQ(list->size() > 1, bytes >= kPage && pages < ExtentAllocator::rounded(bytes));
  for (const Extent& extent : *list) {
    ASSERT_TRUE(model.set(extent, true)) << "given out twice";
    ASSERT_TRUE(bytes < kPage || extent.offset % kPage == 0);
  }
  held.push_back(*list);
}

void free_checked(ExtentAllocator& allocator, Model& model, std::vector<ExtentList>& held) {
  for (const Extent& extent : held.back()) {
    ASSERT_TRUE(allocator.free(extent).ok());
    ASSERT_TRUE(model.set(extent, false));
  }
  held.pop_back();
}

void random_schedule(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  constexpr std::uint64_t kLength = 5 * kHuge + 7 * 64;
  ExtentAllocator allocator(kLength);
  Model model(kLength);
  std::vector<ExtentList> held;
  for (int step = 0; step < 3000; ++step) {
    if (held.empty() || random() % 100 < 55) {
      allocate_checked(allocator, model, any_size(random), held);
    } else {
      std::swap(held[random() % held.size()], held.back());
      free_checked(allocator, model, held);
    }
    if (testing::Test::HasFatalFailure()) return;
    if (step % 50 != 0) continue;
    ASSERT_TRUE(allocator.check().ok()) << allocator.check().to_string();
    ASSERT_EQ(allocator.used(), model.used());
    ASSERT_TRUE(allocator.largest_free() < kPage || allocator.largest_free() == model.longest_run_of_pages());
  }
  while (!held.empty()) free_checked(allocator, model, held);
  EXPECT_LE(allocator.free_extents(), 1U);
  EXPECT_EQ(allocator.used(), 0U);
}

TEST(ExtentAllocator, ARandomScheduleAgreesWithAModel) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    random_schedule(seed);
  }
}

}  // namespace
}  // namespace kvferry::store
