#include "store/policy/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>
#include <unordered_map>
#include <vector>

#include "store/policy/history.h"
#include "store/policy/reuse_model.h"

namespace kvferry::store {
namespace {

const auto kAny = [](Slot) { return true; };

std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

ObjectId id_of(std::uint64_t number) { return {mixed(number), mixed(~number)}; }

ObjectFacts facts(std::uint64_t number, std::uint64_t parent = 0, std::uint64_t bytes = 1024) {
  return {id_of(number), bytes, parent == 0 ? ObjectId{} : id_of(parent), 0};
}

// A policy with the table of objects that it asks.
class KnownPolicy final : public EvictionPolicy {
 public:
  KnownPolicy(PolicyKind kind, std::uint64_t capacity)
      : policy_(make_policy(
            kind, capacity,
            {[this](Slot slot) { return ids_.at(slot); }, [this](const ObjectId& id) { return find(id); }})) {}

  void insert(Slot slot, const ObjectFacts& facts) override {
    if (slot >= ids_.size()) ids_.resize(slot + 1);
    ids_[slot] = facts.id;
    slots_[facts.id.hi] = slot;
    policy_->insert(slot, facts);
  }
  void access(Slot slot) override { policy_->access(slot); }
  void erase(Slot slot) override {
    policy_->erase(slot);
    if (find(ids_.at(slot)) == slot) slots_.erase(ids_[slot].hi);
  }
  Slot victim(const MayTake& may_take) override { return policy_->victim(may_take); }
  std::uint64_t memory_bytes() const override { return policy_->memory_bytes(); }

 private:
  std::optional<Slot> find(const ObjectId& id) const {
    const auto found = slots_.find(id.hi);
    return found == slots_.end() ? std::nullopt : std::optional(found->second);
  }

  std::vector<ObjectId> ids_;
  std::unordered_map<std::uint64_t, Slot> slots_;  // by the first half of the id
  std::unique_ptr<EvictionPolicy> policy_;
};

std::unique_ptr<EvictionPolicy> known_policy(PolicyKind kind, std::uint64_t capacity) {
  return std::make_unique<KnownPolicy>(kind, capacity);
}

Slot evict(EvictionPolicy& policy) {
  const Slot slot = policy.victim(kAny);
  if (slot != kNoSlot) policy.erase(slot);
  return slot;
}

std::vector<Slot> evict_all(EvictionPolicy& policy) {
  std::vector<Slot> order;
  for (Slot slot; (slot = evict(policy)) != kNoSlot;) order.push_back(slot);
  return order;
}

class EveryPolicy : public testing::TestWithParam<PolicyKind> {
 protected:
  std::unique_ptr<EvictionPolicy> policy = known_policy(GetParam(), 100 << 10);
};

TEST_P(EveryPolicy, IsKnownByItsName) { EXPECT_EQ(policy_kind(policy_name(GetParam())), GetParam()); }

TEST_P(EveryPolicy, NamesNobodyWhenThereIsNobody) {
  EXPECT_EQ(policy->victim(kAny), kNoSlot);
  policy->insert(7, facts(1));
  EXPECT_EQ(policy->victim(kAny), 7U);
  EXPECT_EQ(policy->victim(kAny), 7U) << "it stays until it is erased";
  policy->erase(7);
  EXPECT_EQ(policy->victim(kAny), kNoSlot);
}

TEST_P(EveryPolicy, NeverNamesWhatMayNotBeTaken) {
  for (Slot slot = 0; slot < 100; ++slot) policy->insert(slot, facts(slot + 1));
  const auto odd = [](Slot slot) { return slot % 2 == 1; };
  for (int i = 0; i < 50; ++i) {
    const Slot slot = policy->victim(odd);
    ASSERT_NE(slot, kNoSlot);
    ASSERT_EQ(slot % 2, 1U);
    policy->erase(slot);
  }
  EXPECT_EQ(policy->victim(odd), kNoSlot);
  EXPECT_EQ(evict_all(*policy).size(), 50U) << "those that were pinned are all there";
}

TEST_P(EveryPolicy, FindsTheOneThatMayBeTakenAmongManyThatMayNot) {
  constexpr Slot kCount = 3000;
  for (Slot slot = 0; slot < kCount; ++slot) policy->insert(slot, facts(slot + 1));
  for (const Slot free : {Slot{0}, Slot{1777}, kCount - 1}) {
    int asked = 0;
    int calls = 1;
    const auto only = [&](Slot slot) { return ++asked, slot == free; };
    while (policy->victim(only) != free) {
      ASSERT_LE(asked, calls * EvictionPolicy::kMaxLooks) << "a call has an end";
      ASSERT_LT(++calls, 100) << free;
    }
  }
}

TEST_P(EveryPolicy, ObjectsInUseDoNotHideThoseThatAreUsedMore) {
  for (const Slot in_use : {Slot{1}, Slot{300}}) {
    for (Slot slot = 0; slot < in_use; ++slot) policy->insert(slot, facts(slot + 1));
    for (Slot slot = in_use; slot < in_use + 5; ++slot) {
      policy->insert(slot, facts(slot + 1));
      policy->access(slot);
      policy->access(slot);
    }
    const auto free = [&](Slot slot) { return slot >= in_use; };
    Slot found = kNoSlot;
    for (int call = 0; call < 10 && found == kNoSlot; ++call) found = policy->victim(free);
    EXPECT_NE(found, kNoSlot) << in_use;
    for (Slot slot = 0; slot < in_use + 5; ++slot) policy->erase(slot);
  }
}

TEST_P(EveryPolicy, ObjectsUsedOftenDoNotHideEachOther) {
  for (Slot slot = 0; slot < 1000; ++slot) policy->insert(slot, facts(slot + 1));
  for (int round = 0; round < 5; ++round) {
    for (Slot slot = 0; slot < 1000; ++slot) policy->access(slot);
  }
  EXPECT_EQ(evict_all(*policy).size(), 1000U);
}

TEST_P(EveryPolicy, ErasesInAnyOrderAndUsesSlotsAgain) {
  std::mt19937_64 random(3);
  std::vector<Slot> held;
  std::vector<Slot> spare;
  for (Slot slot = 0; slot < 200; ++slot) spare.push_back(slot);
  for (std::uint64_t step = 1; step < 20'000; ++step) {
    const auto what = random() % 4;
    if (what < 2 && !spare.empty()) {
      std::swap(spare[random() % spare.size()], spare.back());
      policy->insert(spare.back(), facts(step, random() % 3 == 0 ? step - 1 : 0, random() % 5000));
      held.push_back(spare.back());
      spare.pop_back();
    } else if (what == 2 && !held.empty()) {
      policy->access(held[random() % held.size()]);
    } else if (!held.empty()) {
      if (random() % 2 == 0) std::swap(held[random() % held.size()], held.back());
      if (const Slot slot = policy->victim(kAny); random() % 2 == 0) {
        ASSERT_NE(slot, kNoSlot);
        std::swap(*std::find(held.begin(), held.end(), slot), held.back());
      }
      policy->erase(held.back());
      spare.push_back(held.back());
      held.pop_back();
    }
  }
  std::vector<Slot> left = evict_all(*policy);
  std::sort(left.begin(), left.end());
  std::sort(held.begin(), held.end());
  EXPECT_EQ(left, held);
}

TEST_P(EveryPolicy, IsDeterministic) {
  std::vector<Slot> orders[2];
  for (auto& order : orders) {
    const auto one = known_policy(GetParam(), 50 << 10);
    std::mt19937_64 random(9);
    for (std::uint64_t step = 1; step <= 3000; ++step) {
      Slot slot = static_cast<Slot>(step - 1);
      if (step > 50) order.push_back(slot = evict(*one));
      one->insert(slot, facts(random() % 400 + 1));
      if (random() % 2 == 0) one->access(slot);
    }
  }
  EXPECT_EQ(orders[0], orders[1]);
}

TEST_P(EveryPolicy, TakesFewBytesAnObject) {
  const std::map<PolicyKind, double> most = {
      {PolicyKind::kLru, 9}, {PolicyKind::kLfu, 11}, {PolicyKind::kS3Fifo, 24}, {PolicyKind::kPrefix, 24}};
  constexpr Slot kCount = 300'000;
  const auto large = known_policy(GetParam(), std::uint64_t{kCount} << 10);
  for (Slot slot = 0; slot < kCount; ++slot) large->insert(slot, facts(slot + 1, slot % 8 == 0 ? 0 : slot));
  const std::uint64_t before = large->memory_bytes();
  EXPECT_LT(static_cast<double>(before) / kCount, most.at(GetParam()));
  for (Slot slot = 0; slot < kCount; ++slot) large->insert(evict(*large), facts(kCount + slot + 1));
  EXPECT_EQ(large->memory_bytes(), before) << "new ids in old slots cost nothing more";
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy,
                         testing::Values(PolicyKind::kLru, PolicyKind::kLfu, PolicyKind::kS3Fifo, PolicyKind::kPrefix),
                         [](const auto& one) { return std::string(policy_name(one.param)); });

TEST(PolicyNames, AnUnknownNameIsNone) { EXPECT_EQ(policy_kind("fifo"), std::nullopt); }

TEST(LruPolicy, AgreesWithAModel) {
  const auto policy = known_policy(PolicyKind::kLru, 0);
  std::list<Slot> model;
  std::mt19937_64 random(1);
  for (std::uint64_t step = 1; step < 5000; ++step) {
    const auto slot = static_cast<Slot>(random() % 64);
    const auto held = std::find(model.begin(), model.end(), slot);
    if (held == model.end()) {
      policy->insert(slot, facts(step));
      model.push_back(slot);
    } else if (random() % 4 != 0) {
      policy->access(slot);
      model.splice(model.end(), model, held);
    } else {
      ASSERT_EQ(evict(*policy), model.front());
      model.pop_front();
    }
  }
}

// The same policy with exact numbers, in a set ordered by key and time.
TEST(LfuPolicy, AgreesWithAModel) {
  struct Key {
    std::uint64_t key, time, count;
  };
  const auto policy = known_policy(PolicyKind::kLfu, 0);
  std::map<Slot, Key> model;
  std::uint64_t floor = 0;
  std::mt19937_64 random(2);
  for (std::uint64_t step = 1; step < 20'000; ++step) {
    const auto slot = static_cast<Slot>(std::min(random() % 64, random() % 64));
    const auto held = model.find(slot);
    if (held == model.end()) {
      policy->insert(slot, facts(step));
      model[slot] = {floor + 1, step, 1};
    } else if (random() % 4 != 0) {
      policy->access(slot);
      const std::uint64_t count = std::min<std::uint64_t>(held->second.count + 1, 255);
      held->second = {floor + count, step, count};
    } else {
      const auto least = std::min_element(model.begin(), model.end(), [](const auto& a, const auto& b) {
        return std::pair(a.second.key, a.second.time) < std::pair(b.second.key, b.second.time);
      });
      floor = least->second.key;
      ASSERT_EQ(evict(*policy), least->first);
      model.erase(least);
    }
  }
}

TEST(LfuPolicy, WhatWasPopularLongAgoGoesInTheEnd) {
  const auto policy = known_policy(PolicyKind::kLfu, 0);
  policy->insert(0, facts(1));
  for (int i = 0; i < 100; ++i) policy->access(0);
  for (std::uint64_t number = 2; number < 10'000; ++number) {
    policy->insert(1, facts(number));
    policy->access(1);
    if (evict(*policy) == 0) return;
  }
  FAIL() << "a hundred uses must not last for ten thousand newcomers";
}

TEST(S3FifoPolicy, OneHitWondersLeaveAndWhatIsUsedStays) {
  const auto policy = known_policy(PolicyKind::kS3Fifo, 100 << 10);
  for (Slot slot = 0; slot < 100; ++slot) policy->insert(slot, facts(slot + 1));
  for (Slot slot = 0; slot < 50; ++slot) {
    policy->access(slot);
    policy->access(slot);
  }
  for (std::uint64_t number = 1000; number < 1300; ++number) {
    const Slot slot = evict(*policy);
    ASSERT_GE(slot, 50U);
    policy->insert(slot, facts(number));
  }
}

TEST(S3FifoPolicy, AnIdThatCameBackIsKeptLonger) {
  const auto policy = known_policy(PolicyKind::kS3Fifo, 100 << 10);
  for (Slot slot = 0; slot < 100; ++slot) policy->insert(slot, facts(slot + 1));
  ASSERT_EQ(evict(*policy), 0U);
  policy->insert(0, facts(1));
  for (Slot slot = 1; slot < 91; ++slot) EXPECT_EQ(evict(*policy), slot);
  EXPECT_EQ(evict(*policy), 0U) << "now the main queue's turn";
}

TEST(PrefixPolicy, ChainsGoFromTheirEnds) {
  const auto policy = known_policy(PolicyKind::kPrefix, 100 << 10);
  for (Slot slot = 0; slot < 20; ++slot) policy->insert(slot, facts(slot + 1, slot));
  for (Slot slot = 20; slot-- > 0;) EXPECT_EQ(evict(*policy), slot);
}

TEST(PrefixPolicy, AParentThatMayNotBeTakenDoesNotStopItsChildren) {
  const auto policy = known_policy(PolicyKind::kPrefix, 100 << 10);
  for (Slot slot = 0; slot < 3; ++slot) policy->insert(slot, facts(slot + 1, slot));
  const auto not_first = [](Slot slot) { return slot != 0; };
  EXPECT_EQ(policy->victim(not_first), 2U);
  policy->erase(2);
  EXPECT_EQ(policy->victim(not_first), 1U);
  policy->erase(1);
  EXPECT_EQ(policy->victim(not_first), kNoSlot);
}

TEST(PrefixPolicy, NoParentGoesBeforeItsChildrenInAnySchedule) {
  struct Object {
    std::uint64_t number, parent;
  };
  const auto policy = known_policy(PolicyKind::kPrefix, 300 << 10);
  std::map<Slot, Object> held;
  std::map<std::uint64_t, Slot> slots;
  std::map<Slot, Slot> parents;  // as they were when the child came
  std::mt19937_64 random(5);
  const auto forget = [&](Slot slot) {
    policy->erase(slot);
    std::erase_if(parents, [&](const auto& pair) { return pair.first == slot || pair.second == slot; });
    slots.erase(held[slot].number);
    held.erase(slot);
  };
  for (int step = 0; step < 30'000; ++step) {
    const std::uint64_t number = random() % 2000 + 1;
    const std::uint64_t parent = number / 3;  // a tree of ids
    const auto slot = slots.find(number);
    if (slot != slots.end() && random() % 8 == 0) {
      forget(slot->second);  // in the middle of its chain, perhaps
    } else if (slot != slots.end()) {
      policy->access(slot->second);
    } else {
      if (held.size() == 300) {
        const Slot victim = policy->victim([&](Slot one) { return one % 7 != static_cast<Slot>(step) % 7; });
        ASSERT_NE(victim, kNoSlot);
        const auto child = std::find_if(parents.begin(), parents.end(), [&](auto& p) { return p.second == victim; });
        ASSERT_EQ(child, parents.end()) << "a parent before its child at step " << step;
        forget(victim);
      }
      Slot free = static_cast<Slot>(random() % 300);
      while (held.contains(free)) free = (free + 1) % 300;
      policy->insert(free, facts(number, parent));
      if (slots.contains(parent)) parents[free] = slots[parent];
      held[free] = {number, parent};
      slots[number] = free;
    }
  }
}

TEST(PrefixPolicy, WhatStandsAloneGoesInTheOrderInWhichItCame) {
  for (const Slot count : {Slot{8}, Slot{100}, Slot{1000}}) {  // all of one epoch, and of several
    const auto policy = known_policy(PolicyKind::kPrefix, std::uint64_t{count} << 10);
    for (Slot slot = 0; slot < count; ++slot) policy->insert(slot, facts(slot + 1));
    for (Slot slot = 0; slot < count; ++slot) ASSERT_EQ(evict(*policy), slot) << "of " << count;
  }
}

// Chains of ten, each used once more much later, so that new leaves are worth least; objects that stand alone in
// between.
class AloneAmongChains {
 public:
  static constexpr Slot kHeld = 1000;

  void put(std::uint64_t number, std::uint64_t parent) {
    Slot slot = static_cast<Slot>(slots_.size());
    if (slots_.size() == kHeld) {
      slots_.erase(numbers_[slot = evict(*policy_)]);
    }
    policy_->insert(slot, facts(number, parent));
    slots_[number] = slot;
    numbers_[slot] = number;
  }
  void next_chain() {
    const std::uint64_t first = 1'000'000 + 10 * chains_++;
    for (std::uint64_t block = first; block < first + 10; ++block) use(block, block == first ? 0 : block - 1);
    for (std::uint64_t block = first - 600; block < first - 590; ++block) {
      if (held(block)) policy_->access(slots_[block]);
    }
  }
  bool held(std::uint64_t number) const { return slots_.contains(number); }

 private:
  void use(std::uint64_t number, std::uint64_t parent) {
    held(number) ? policy_->access(slots_[number]) : put(number, parent);
  }

  std::unique_ptr<EvictionPolicy> policy_ = known_policy(PolicyKind::kPrefix, std::uint64_t{kHeld} << 10);
  std::map<std::uint64_t, Slot> slots_;
  std::map<Slot, std::uint64_t> numbers_;
  std::uint64_t chains_ = 0;
};

TEST(PrefixPolicy, WhatStandsAloneOutlivesAFifthOfTheMemory) {
  AloneAmongChains cache;
  for (int i = 0; i < 1000; ++i) cache.next_chain();
  for (std::uint64_t number = 1; number <= 50; ++number) {
    cache.put(number, 0);
    for (int i = 0; i < 20; ++i) cache.next_chain();
    ASSERT_TRUE(cache.held(number)) << number;
  }
}

TEST(PrefixPolicy, WhatStandsAloneDoesNotKeepItsPartForEver) {
  AloneAmongChains cache;
  for (std::uint64_t number = 1; number <= 250; ++number) cache.put(number, 0);
  for (int i = 0; i < 1000; ++i) cache.next_chain();
  std::uint64_t left = 0;
  for (std::uint64_t number = 1; number <= 250; ++number) left += cache.held(number) ? 1u : 0u;
  EXPECT_LT(left, 25U);
}

TEST(PrefixPolicy, WhatComesBackIsKeptAndWhatPassesOnceIsNot) {
  constexpr Slot kHeld = 200;
  const auto policy = known_policy(PolicyKind::kPrefix, std::uint64_t{kHeld} << 10);
  std::map<std::uint64_t, Slot> slots;
  std::map<Slot, std::uint64_t> numbers;
  std::uint64_t hits = 0;
  std::uint64_t asked = 0;
  const auto use = [&](std::uint64_t number) {
    if (const auto found = slots.find(number); found != slots.end()) return policy->access(found->second), true;
    Slot slot = static_cast<Slot>(slots.size());
    if (slots.size() == kHeld) {
      slots.erase(numbers[slot = evict(*policy)]);
    }
    policy->insert(slot, facts(number));
    slots[number] = slot;
    numbers[slot] = number;
    return false;
  };
  // A hundred ids in turn, with four newcomers after each: by recency none would ever be found.
  for (std::uint64_t step = 1; step <= 20'000; ++step) {
    const bool hit = use(step % 100 + 1);
    if (step > 10'000) {
      hits += hit;
      ++asked;
    }
    for (std::uint64_t i = 0; i < 4; ++i) use(1'000'000 + step * 4 + i);
  }
  EXPECT_GT(hits * 10, asked * 8);
}

TEST(ReuseModel, AgesCoverAllEpochsInOrder) {
  for (std::uint32_t age = 0; age < ReuseModel::kAges; ++age) {
    EXPECT_EQ(ReuseModel::age_of(ReuseModel::first_epoch_of(age)), age);
    EXPECT_LT(ReuseModel::first_epoch_of(age), ReuseModel::first_epoch_of(age + 1));
    if (age == 0) continue;
    EXPECT_EQ(ReuseModel::age_of(ReuseModel::first_epoch_of(age) - 1), age - 1);
  }
  EXPECT_EQ(ReuseModel::age_of(UINT32_MAX), ReuseModel::kAges - 1);
}

TEST(ReuseModel, LearnsWhenObjectsComeBack) {
  ReuseModel model;
  // A half of the new objects come back after 20 epochs, those used once more never.
  for (std::uint32_t epoch = 1; epoch < 300; ++epoch) {
    for (std::uint32_t i = 0; i < 20; ++i) model.use(epoch * 100 + i, 1, epoch);
    for (std::uint32_t i = 0; i < 10 && epoch > 20; ++i) model.use((epoch - 20) * 100 + i, 2, epoch);
    model.learn(epoch);
  }
  const auto& worth = model.worth();
  EXPECT_GT(worth[0][19], 4 * worth[0][0]);
  EXPECT_GT(worth[0][0], worth[0][25]);
  EXPECT_GT(worth[0][0], worth[1][0]);
}

TEST(ReuseModel, SamplesWhatItCannotHold) {
  ReuseModel model;
  const std::uint64_t before = model.memory_bytes();
  std::mt19937 random(4);
  for (std::uint32_t i = 0; i < 200'000; ++i) model.use(static_cast<std::uint32_t>(random()), 1, i / 1000);
  model.learn(200);
  EXPECT_EQ(model.memory_bytes(), before);
}

TEST(History, RemembersTheNewestAndForgetsTheOldest) {
  History history(1);
  history.make_room_for(1024);
  for (std::uint64_t i = 0; i < 10'000; ++i) history.put(tag_of(id_of(i)), static_cast<std::uint8_t>(i % 16));
  int known = 0;
  for (std::uint64_t i = 9'500; i < 10'000; ++i) known += history.take(tag_of(id_of(i))) == i % 16 ? 1 : 0;
  EXPECT_GT(known, 450);
  int old = 0;
  for (std::uint64_t i = 0; i < 5'000; ++i) old += history.take(tag_of(id_of(i))).has_value() ? 1 : 0;
  EXPECT_LT(old, 100);
}

TEST(History, KeepsWhatItKnowsWhenItGrows) {
  History history(1);
  history.make_room_for(1);
  for (std::uint64_t i = 0; i < 50; ++i) history.put(tag_of(id_of(i)), 9);
  history.make_room_for(100'000);
  for (std::uint64_t i = 0; i < 50; ++i) EXPECT_EQ(history.take(tag_of(id_of(i))), 9);
  EXPECT_EQ(history.take(tag_of(id_of(7))), std::nullopt) << "taken is taken";
}

}  // namespace
}  // namespace kvferry::store
