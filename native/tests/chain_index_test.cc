// The prefix index: against a simple model under random events, its searches, its memory, and readers beside a writer.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "index/block_table.h"
#include "kvferry/chain_index.h"

namespace kvferry::index {
namespace {

using Keys = std::vector<BlockKey>;

BlockKey key_of(std::uint64_t number) {
  BlockKey key;
  const std::uint64_t mixed = number * 0x9e3779b97f4a7c15;
  std::memcpy(key.bytes.data(), &mixed, sizeof(mixed));
  std::memcpy(key.bytes.data() + 8, &number, sizeof(number));
  return key;
}

Keys chain(std::uint64_t first, std::size_t length) {
  Keys keys;
  for (std::uint64_t i = 0; i < length; ++i) keys.push_back(key_of(first + i));
  return keys;
}

std::vector<std::uint32_t> lengths_of(const ChainIndex& index, const Keys& keys, Search search = Search::kLinear) {
  std::vector<std::uint32_t> lengths(index.max_instances());
  const std::size_t longest = index.match(keys, lengths, search);
  EXPECT_EQ(longest, *std::ranges::max_element(lengths));
  return lengths;
}

TEST(ChainIndex, MatchesTheLongestPrefixOfEachInstance) {
  ChainIndex index({.max_instances = 3});
  const Keys keys = chain(1, 10);
  ASSERT_EQ(index.stored(0, nullptr, std::span(keys).first(4)).value().added, 4U);
  ASSERT_EQ(index.stored(2, nullptr, std::span(keys).first(7)).value().added, 7U);
  for (const Search search : {Search::kLinear, Search::kGallop}) {
    EXPECT_EQ(index.match_prefix(keys, search), 7U);
    EXPECT_EQ(lengths_of(index, keys, search), (std::vector<std::uint32_t>{4, 0, 7}));
    EXPECT_EQ(lengths_of(index, chain(5, 3), search), (std::vector<std::uint32_t>{0, 0, 3}));  // from the middle
    EXPECT_EQ(lengths_of(index, {}, search), (std::vector<std::uint32_t>{0, 0, 0}));
    EXPECT_EQ(index.match_prefix({}, search), 0U);
    EXPECT_EQ(index.match_prefix(chain(100, 5), search), 0U);
  }
  EXPECT_EQ(index.holders(keys[3]), (std::vector<InstanceId>{0, 2}));
  EXPECT_EQ(index.stats().blocks, 7U);
  EXPECT_EQ(index.stats().held, (std::vector<std::size_t>{4, 0, 7}));
}

TEST(ChainIndex, AGapEndsThePrefixOfALinearSearch) {
  ChainIndex index({.max_instances = 2});
  const Keys keys = chain(1, 10);
  ASSERT_TRUE(index.stored(0, nullptr, keys).ok());
  ASSERT_TRUE(index.stored(1, nullptr, keys).ok());
  EXPECT_EQ(index.removed(0, std::span(keys).subspan(5, 1)).value(), 1U);
  EXPECT_EQ(index.match_prefix(keys), 10U);  // somebody holds each
  EXPECT_EQ(lengths_of(index, keys), (std::vector<std::uint32_t>{5, 10}));
  EXPECT_EQ(index.removed(1, std::span(keys).subspan(5, 1)).value(), 1U);
  EXPECT_EQ(index.match_prefix(keys), 5U);
}

TEST(ChainIndex, SaysWhetherTheParentIsHeld) {
  ChainIndex index({.max_instances = 2});
  const Keys keys = chain(1, 4);
  EXPECT_TRUE(index.stored(0, nullptr, std::span(keys).first(2)).value().parent_held);
  EXPECT_TRUE(index.stored(0, &keys[1], std::span(keys).subspan(2)).value().parent_held);
  EXPECT_FALSE(index.stored(1, &keys[1], std::span(keys).subspan(2)).value().parent_held);
}

TEST(ChainIndex, CountsReferencesOfRepeatedBlocks) {
  ChainIndex index({.max_instances = 2});
  const Keys keys = chain(1, 3);
  const auto references = [&](InstanceId instance) {
    std::vector<std::uint32_t> out(keys.size());
    EXPECT_TRUE(index.references(instance, keys, out).ok());
    return out;
  };
  ASSERT_TRUE(index.stored(0, nullptr, keys).ok());
  const auto again = index.stored(0, nullptr, std::span(keys).first(2)).value();
  EXPECT_EQ(again.added, 0U);
  EXPECT_EQ(again.repeated, 2U);
  ASSERT_TRUE(index.stored(0, nullptr, std::span(keys).first(1)).ok());
  ASSERT_TRUE(index.stored(1, nullptr, std::span(keys).first(1)).ok());
  EXPECT_EQ(references(0), (std::vector<std::uint32_t>{3, 2, 1}));
  EXPECT_EQ(references(1), (std::vector<std::uint32_t>{1, 0, 0}));
  EXPECT_EQ(index.stats().repeats, 2U);
  for (const std::uint32_t left : {2U, 1U, 0U}) {
    EXPECT_EQ(index.removed(0, std::span(keys).first(1)).value(), 1U);
    EXPECT_EQ(references(0)[0], left);
  }
  EXPECT_EQ(index.removed(0, std::span(keys).first(1)).value(), 0U);
  EXPECT_EQ(references(1)[0], 1U);
  EXPECT_EQ(index.cleared(0).value(), 2U);
  EXPECT_EQ(index.stats().repeats, 0U);
  ASSERT_TRUE(index.stored(0, nullptr, keys).ok());
  EXPECT_EQ(references(0), (std::vector<std::uint32_t>{1, 1, 1}));
}

TEST(ChainIndex, WithoutCountingOneRemovalIsEnough) {
  ChainIndex index({.max_instances = 1, .count_repeats = false});
  const Keys keys = chain(1, 3);
  ASSERT_TRUE(index.stored(0, nullptr, keys).ok());
  EXPECT_EQ(index.stored(0, nullptr, keys).value().repeated, 3U);
  EXPECT_EQ(index.removed(0, keys).value(), 3U);
  EXPECT_EQ(index.stats().blocks, 0U);
}

TEST(ChainIndex, TakesNoMoreBlocksThanAllowed) {
  ChainIndex index({.max_instances = 2, .max_blocks = 5});
  const Keys keys = chain(1, 8);
  const auto first = index.stored(0, nullptr, keys).value();
  EXPECT_EQ(first.added, 5U);
  EXPECT_EQ(first.refused, 3U);
  EXPECT_EQ(index.stored(1, nullptr, keys).value().added, 5U);  // no new blocks
  EXPECT_EQ(index.match_prefix(keys), 5U);
}

TEST(ChainIndex, RefusesUnknownInstances) {
  ChainIndex index({.max_instances = 2});
  const Keys keys = chain(1, 1);
  std::vector<std::uint32_t> out(1);
  EXPECT_EQ(index.stored(2, nullptr, keys).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(index.removed(2, keys).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(index.cleared(2).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(index.references(2, keys, out).code(), Code::kInvalidArgument);
  EXPECT_EQ(index.references(0, keys, {}).code(), Code::kInvalidArgument);
  EXPECT_EQ(ChainIndex({.max_instances = 0}).max_instances(), 1U);
  EXPECT_EQ(ChainIndex({.max_instances = 5000}).max_instances(), 1024U);
}

TEST(ChainIndex, AKeyOfZerosIsAKey) {
  ChainIndex index;
  const Keys keys(1);
  EXPECT_EQ(index.match_prefix(keys), 0U);
  ASSERT_TRUE(index.stored(0, nullptr, keys).ok());
  EXPECT_EQ(index.match_prefix(keys), 1U);
  EXPECT_EQ(index.removed(0, keys).value(), 1U);
  EXPECT_EQ(index.match_prefix(keys), 0U);
}

// What the index should say, from one map.
class Model {
 public:
  explicit Model(std::uint32_t instances) : instances_(instances) {}
  std::uint32_t& count(InstanceId instance, const BlockKey& key) { return counts_[key][instance]; }
  void clear(InstanceId instance) {
    for (auto& [key, counts] : counts_) counts.erase(instance);
  }
  std::vector<std::uint32_t> match(const Keys& keys) {
    std::vector<std::uint32_t> lengths(instances_);
    for (InstanceId instance = 0; instance < instances_; ++instance) {
      while (lengths[instance] < keys.size() && count(instance, keys[lengths[instance]]) > 0) ++lengths[instance];
    }
    return lengths;
  }
  std::size_t blocks() const {
    return static_cast<std::size_t>(std::ranges::count_if(counts_, [](const auto& one) {
      return std::ranges::any_of(one.second, [](const auto& pair) { return pair.second > 0; });
    }));
  }

 private:
  std::uint32_t instances_;
  std::map<BlockKey, std::map<InstanceId, std::uint32_t>> counts_;
};

class RandomEvents : public testing::TestWithParam<std::uint32_t> {};

TEST_P(RandomEvents, GiveWhatAModelGives) {
  const std::uint32_t instances = GetParam();
  std::mt19937 engine(instances);
  const auto below = [&engine](std::size_t limit) { return static_cast<std::uint32_t>(engine() % limit); };
  ChainIndex index({.max_instances = instances});
  Model model(instances);
  for (int step = 0; step < 1500; ++step) {
    const InstanceId instance = below(instances);
    const Keys keys = chain(1 + below(2000), 1 + below(60));
    const std::uint32_t what = below(100);
    if (what < 55) {
      ASSERT_TRUE(index.stored(instance, nullptr, keys).ok());
      for (const BlockKey& key : keys) ++model.count(instance, key);
    } else if (what < 98) {
      std::size_t held = 0;
      for (const BlockKey& key : keys) {
        std::uint32_t& count = model.count(instance, key);
        held += count > 0 ? 1U : 0U;
        count -= count > 0 ? 1 : 0;
      }
      ASSERT_EQ(index.removed(instance, keys).value(), held);
    } else {
      ASSERT_TRUE(index.cleared(instance).ok());
      model.clear(instance);
    }
    ASSERT_EQ(lengths_of(index, keys), model.match(keys)) << "step " << step;
  }
  ASSERT_EQ(index.stats().blocks, model.blocks());
  for (InstanceId instance = 0; instance < instances; ++instance) {
    std::vector<std::uint32_t> references(2060);
    const Keys all = chain(1, references.size());
    ASSERT_TRUE(index.references(instance, all, references).ok());
    for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(references[i], model.count(instance, all[i]));
    ASSERT_TRUE(index.cleared(instance).ok());
  }
  EXPECT_EQ(index.stats().blocks, 0U);
  EXPECT_EQ(index.stats().repeats, 0U);
}

INSTANTIATE_TEST_SUITE_P(Instances, RandomEvents, testing::Values(1, 5, 64, 130));

TEST(ChainIndex, BothSearchesAgreeOnPrefixesThatAreClosed) {
  std::mt19937 engine(9);
  for (int round = 0; round < 200; ++round) {
    ChainIndex index({.max_instances = 70});
    const Keys keys = chain(1, 1 + engine() % 300);
    for (InstanceId instance = 0; instance < 70; ++instance) {
      const std::size_t held = engine() % 3 == 0 ? keys.size() : engine() % (keys.size() + 1);
      ASSERT_TRUE(index.stored(instance, nullptr, std::span(keys).first(held)).ok());
    }
    EXPECT_EQ(lengths_of(index, keys, Search::kGallop), lengths_of(index, keys, Search::kLinear));
    EXPECT_EQ(index.match_prefix(keys, Search::kGallop), index.match_prefix(keys, Search::kLinear));
  }
}

TEST(ChainIndex, KeepsTo64BytesForEachBlockAtAnySize) {
  ChainIndex index;
  std::size_t stored = 0;
  const std::size_t empty = index.stats().memory_bytes;
  for (const std::size_t size : {20000U, 50000U, 110000U, 170000U, 250000U}) {
    ASSERT_TRUE(index.stored(stored % 64, nullptr, chain(1 + stored, size - stored)).ok());
    stored = size;
    const ChainIndex::Stats stats = index.stats();
    ASSERT_EQ(stats.blocks, stored);
    EXPECT_LE(stats.memory_bytes, 64 * stored) << stored;
  }
  for (const std::size_t left : {100000U, 30000U, 20000U, 0U}) {  // and shrinks
    const Keys keys = chain(1 + left, stored - left);
    for (InstanceId instance = 0; instance < 64; ++instance) ASSERT_TRUE(index.removed(instance, keys).ok());
    stored = left;
    EXPECT_LE(index.stats().memory_bytes, 64 * std::max<std::size_t>(stored, 1) + 2 * empty) << left;
  }
}

TEST(ChainIndex, DistinctSetsOfHoldersAreKeptOnceAndGivenBack) {
  ChainIndex index({.max_instances = 100});
  const std::size_t before = index.stats().memory_bytes;
  const Keys keys = chain(1, 1000);
  std::mt19937 engine(10);
  for (int round = 0; round < 20; ++round) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto instance = static_cast<InstanceId>(engine() % 100);
      ASSERT_TRUE(index.stored(instance, nullptr, std::span(keys).subspan(i, 1)).ok());
    }
  }
  EXPECT_GT(index.stats().memory_bytes, before);
  for (InstanceId instance = 0; instance < 100; ++instance) ASSERT_TRUE(index.cleared(instance).ok());
  EXPECT_EQ(index.stats().blocks, 0U);
  EXPECT_LT(index.stats().memory_bytes, before + 200000);  // room for sets is kept, a bounded one
}

// For ThreadSanitizer; and a reader never sees more than was stored, or less than what stays.
TEST(ChainIndex, ReadersWorkBesideAWriter) {
  ChainIndex index({.max_instances = 4});
  const Keys stays = chain(1, 600);
  const Keys comes = chain(601, 3000);
  Keys all = stays;
  all.insert(all.end(), comes.begin(), comes.end());
  ASSERT_TRUE(index.stored(3, nullptr, stays).ok());
  std::atomic<bool> done = false;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      std::vector<std::uint32_t> lengths(4);
      while (!done.load()) {
        index.match(all, lengths);
        const bool is_right = lengths[3] == stays.size() && index.match_prefix(all) >= stays.size() &&
                              lengths[0] <= all.size() && lengths[1] == 0;
        if (!is_right) ++wrong;
        index.stats();
        index.holders(all[700]);
      }
    });
  }
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(index.stored(0, nullptr, all).ok());
    if (round % 2 == 0) {
      ASSERT_EQ(index.removed(0, all).value(), all.size());
    } else {
      ASSERT_EQ(index.cleared(0).value(), all.size());
    }
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(index.stats().blocks, stays.size());
}

TEST(BlockTable, FilterLooksAtEveryEntryOnce) {
  BlockTable table;
  for (std::uint64_t i = 1; i <= 20000; ++i) table.insert(table.place(key_of(i)), static_cast<std::uint32_t>(i));
  std::vector<int> seen(20001);
  for (std::size_t chunk = table.chunks(); chunk-- > 0;) {
    table.filter(chunk, [&](std::uint32_t value) {
      ++seen[value];
      return value % 7 == 0;
    });
  }
  EXPECT_EQ(std::count(seen.begin() + 1, seen.end(), 1), 20000);
  EXPECT_EQ(table.size(), 20000U / 7);
  for (std::uint32_t i = 1; i <= 20000; ++i) {
    const std::uint32_t* const found = table.find(table.place(key_of(i)));
    ASSERT_EQ(found != nullptr, i % 7 == 0) << i;
    if (found != nullptr) {
      ASSERT_EQ(*found, i);
    }
  }
}

// Blocks that go leave holes, which are filled; when many are left, blocks move together.
TEST(BlockTable, KeepsWhatItHoldsTogetherAndFindsIt) {
  BlockTable table;
  std::mt19937_64 engine(12);
  std::vector<std::uint64_t> held;
  std::uint64_t next = 1;
  const auto find = [&](std::uint64_t number) { return table.find(table.place(key_of(number))); };
  for (const std::size_t size : {30'000U, 3'000U, 20'000U, 19'000U, 20'000U, 500U, 0U, 1'000U}) {
    while (held.size() < size) {
      table.insert(table.place(key_of(next)), static_cast<std::uint32_t>(next));
      held.push_back(next++);
    }
    while (held.size() > size) {
      std::swap(held[engine() % held.size()], held.back());
      table.erase(table.place(key_of(held.back())));
      ASSERT_EQ(find(held.back()), nullptr);
      held.pop_back();
    }
    ASSERT_EQ(table.size(), size);
    EXPECT_LE(table.memory_bytes(), 50 * size + 50'000) << size;
    for (const std::uint64_t number : held) {
      const std::uint32_t* const found = find(number);
      ASSERT_NE(found, nullptr) << number;
      ASSERT_EQ(*found, number);
    }
  }
}

TEST(ChainIndex, ForgetsAllOfOneInstanceAndNothingOfOthers) {
  ChainIndex index;
  const Keys keys = chain(1, 30'000);
  std::mt19937_64 engine(13);
  std::size_t stays = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::span one = std::span(keys).subspan(i, 1);
    ASSERT_TRUE(index.stored(1, nullptr, one).ok());
    if (engine() % 8 != 0) continue;
    ASSERT_TRUE(index.stored(2, nullptr, one).ok());
    ++stays;
  }
  EXPECT_EQ(index.cleared(1).value(), keys.size());
  EXPECT_EQ(index.stats().blocks, stays);
  EXPECT_EQ(index.cleared(1).value(), 0U);
  EXPECT_EQ(index.cleared(2).value(), stays);
  EXPECT_EQ(index.stats().blocks, 0U);
}

}  // namespace
}  // namespace kvferry::index
