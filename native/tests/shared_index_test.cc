// The index in shared memory: what readers see while it changes, and that they believe nothing that cannot be.
#include "store/shared_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "store/index_reader.h"
#include "store_fixture.h"

namespace kvferry::store {
namespace {

using testing::digest_for;
using testing::id_of;
using testing::SharedBlock;

NodeOptions for_objects(std::uint64_t count) {
  NodeOptions options;
  options.max_objects = count;
  return options;
}

NodeId some_node() {
  NodeId node;
  node.bytes[3] = 7;
  return node;
}

struct Index {
  explicit Index(std::uint64_t objects)
      : shape(IndexShape::of(for_objects(objects))),
        memory(shape.bytes()),
        writer(memory.span(), shape, some_node()),
        reader(*IndexReader::attach(memory.span(), some_node())) {}

  std::uint32_t put(const ObjectId& id, const std::vector<Place>& places, std::uint64_t expires_ms = kNeverExpires) {
    SharedIndex::Entry entry;
    entry.id = id;
    for (const Place& place : places) entry.held.bytes += place.length;
    entry.held.digest = digest_for(id);
    entry.held.replicas = 3;
    entry.expires_ms = expires_ms;
    const std::uint32_t slot = *writer.take_slot();
    writer.put(slot, entry, places);
    return slot;
  }
  void erase(std::uint32_t slot) {
    writer.erase(slot);
    writer.give_slot(slot);
  }
  std::vector<Place> places(const ObjectId& id) const {
    std::vector<Place> places;
    const auto found = reader.find(id, 0);
    if (found) {
      EXPECT_TRUE(reader.places(*found, places));
    }
    return places;
  }

  IndexShape shape;
  SharedBlock memory;
  SharedIndex writer;
  IndexReader reader;
};

TEST(SharedIndex, FindsWhatWasPut) {
  Index index(100);
  const Place place{65535, (1ull << 48) - 4096, 4096};
  const std::uint64_t expires_ms = (1ull << 47) + 12345;
  index.put(id_of(1), {place}, expires_ms);
  index.put(id_of(2), {});
  const auto found = index.reader.find(id_of(1), 0);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->held.bytes, 4096u);
  EXPECT_EQ(found->held.digest, digest_for(id_of(1)));
  EXPECT_EQ(found->held.replicas, 3u);
  EXPECT_EQ(found->held.tier, Tier::kDram);
  EXPECT_EQ(found->expires_ms, expires_ms);
  EXPECT_EQ(index.places(id_of(1)), std::vector<Place>{place});
  EXPECT_TRUE(index.reader.find(id_of(1), expires_ms - 1));
  EXPECT_FALSE(index.reader.find(id_of(1), expires_ms));
  EXPECT_TRUE(index.reader.find(id_of(2), UINT64_MAX >> 17));
  EXPECT_TRUE(index.places(id_of(2)).empty());
  EXPECT_FALSE(index.reader.find(id_of(3), 0));
}

TEST(SharedIndex, HoldsAsManyAsItHasSlots) {
  Index index(1000);
  std::vector<std::uint32_t> slots;
  for (std::uint64_t i = 0; i < 1000; ++i) slots.push_back(index.put(id_of(i), {{0, i * 64, 64}}));
  EXPECT_FALSE(index.writer.take_slot());
  for (std::uint64_t i = 0; i < 1000; i += 3) index.erase(slots[i]);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(index.reader.find(id_of(i), 0).has_value(), i % 3 != 0) << i;
    if (i % 3 != 0) {
      EXPECT_EQ(index.places(id_of(i)), (std::vector<Place>{{0, i * 64, 64}}));
    }
  }
  std::vector<ObjectId> ids;
  for (std::uint64_t i = 0; i < 1000; ++i) ids.push_back(id_of(i));
  std::vector<std::uint8_t> found(ids.size(), 9);
  index.reader.exists(ids, found);
  for (std::uint64_t i = 0; i < 1000; ++i) EXPECT_EQ(found[i], i % 3 != 0 ? 1 : 0);
  EXPECT_EQ(index.writer.slots_left(), 334u);
}

TEST(SharedIndex, KeepsListsOfPlacesApart) {
  Index index(64);
  const std::vector<Place> eight{{0, 0, 4096},       {1, 4096, 8192},    {0, 65536, 4096},   {2, 0, 4096},
                                 {0, 1 << 20, 4096}, {1, 1 << 21, 4096}, {0, 1 << 22, 4096}, {3, 64, 77}};
  const std::vector<Place> two{{0, 0, 4096}, {0, 8192, 1}};
  const std::uint32_t slot = index.put(id_of(1), eight);
  index.put(id_of(2), two);
  EXPECT_EQ(index.places(id_of(1)), eight);
  EXPECT_EQ(index.places(id_of(2)), two);
  EXPECT_EQ(index.writer.places(slot), eight);
  const std::uint64_t left = index.writer.lists_left();
  index.erase(slot);
  EXPECT_EQ(index.writer.lists_left(), left + 1);
  index.put(id_of(3), two);
  EXPECT_EQ(index.places(id_of(3)), two);
  EXPECT_EQ(index.places(id_of(2)), two);
}

TEST(SharedIndex, TellsWhichTierHasTheBytes) {
  Index index(64);
  const std::vector<Place> two{{0, 0, 4096}, {0, 8192, 1}};
  const std::uint32_t slot = index.put(id_of(1), two, 1000);
  const auto in_memory = *index.reader.find(id_of(1), 0);
  const std::uint64_t lists = index.writer.lists_left();
  index.writer.move_to_ssd(slot);
  EXPECT_FALSE(index.reader.unchanged(in_memory));
  EXPECT_EQ(index.writer.lists_left(), lists + 1);
  const auto on_ssd = *index.reader.find(id_of(1), 0);
  EXPECT_EQ(on_ssd.held.tier, Tier::kSsd);
  EXPECT_EQ(on_ssd.held.bytes, 4097u);
  EXPECT_EQ(on_ssd.held.replicas, 3u);
  EXPECT_EQ(on_ssd.expires_ms, 1000u);
  std::vector<Place> places;
  EXPECT_FALSE(index.reader.places(on_ssd, places));
  index.writer.move_to_memory(slot, std::vector<Place>{{5, 64, 4097}});
  EXPECT_EQ(index.places(id_of(1)), (std::vector<Place>{{5, 64, 4097}}));
  EXPECT_FALSE(index.reader.unchanged(in_memory));
}

TEST(SharedIndex, IsRefusedWhereItIsAnothers) {
  Index index(64);
  const auto code = [&](std::span<const std::byte> memory, const NodeId& node) {
    return IndexReader::attach(memory, node).status().code();
  };
  EXPECT_EQ(code(index.memory.span(), some_node()), Code::kOk);
  EXPECT_EQ(code(index.memory.span(), NodeId{}), Code::kProtocolError);
  EXPECT_EQ(code(index.memory.span().first(60), some_node()), Code::kProtocolError);
  EXPECT_EQ(code(index.memory.span().first(index.shape.bytes() - 1), some_node()), Code::kProtocolError);
  EXPECT_EQ(code(index.memory.span().subspan(8), some_node()), Code::kProtocolError);
  auto* const header = reinterpret_cast<IndexHeader*>(index.memory.span().data());
  header->buckets.store(65, std::memory_order_relaxed);
  EXPECT_EQ(code(index.memory.span(), some_node()), Code::kProtocolError);
  header->buckets.store(1ull << 63, std::memory_order_relaxed);
  EXPECT_EQ(code(index.memory.span(), some_node()), Code::kProtocolError);
  header->buckets.store(64, std::memory_order_relaxed);
  header->magic.store(1, std::memory_order_relaxed);
  EXPECT_EQ(code(index.memory.span(), some_node()), Code::kProtocolError);
}

// Nothing but the answers may go wrong: the sanitizers look on.
TEST(SharedIndex, SurvivesAnyBytes) {
  testing::StoreOnMemory node(for_objects(64));
  const auto client = node.new_client();
  const std::uint64_t seed = random_u64();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::uint64_t state = seed;
  const auto index = node.shared().index;
  auto* const words = reinterpret_cast<SharedWord*>(const_cast<std::byte*>(index.data()));
  for (int round = 0; round < 60; ++round) {
    for (std::size_t i = sizeof(IndexHeader) / 8; i < index.size() / 8; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      // Small numbers look like slots; chains of them run in circles.
      words[i].store(round % 2 == 0 ? state : (state >> 40) % 80 | (state >> 50) % 80 << 32, std::memory_order_relaxed);
    }
    for (std::uint64_t i = 0; i < 16; ++i) {
      const ObjectId id{words[16].load(), words[17].load() + i};
      const auto pin = client->pin(id);
      if (pin.ok() && *pin) client->unpin(**pin);
    }
  }
  std::memset(const_cast<std::byte*>(index.data()) + sizeof(IndexHeader), 0, index.size() - sizeof(IndexHeader));
}

// Half of the objects stay all the while, the others come and go through the same few chains and slots.
class ChangingIndex {
 public:
  ChangingIndex() : index_(2 * kStaying) {
    for (std::uint64_t number = 0; number < kStaying; ++number) index_.put(id_of(number), one_place(number));
  }

  void look_at_all() {
    for (std::uint64_t number = 0; number < 2 * kStaying; ++number) {
      const auto found = index_.reader.find(id_of(number), 0);
      if (number < kStaying && !found) ++wrong;
      std::vector<Place> places;
      if (!found || !index_.reader.places(*found, places)) continue;
      const bool scattered = number >= kStaying && places == two_places(number);
      if (found->held.digest != digest_for(id_of(number)) || (places != one_place(number) && !scattered)) ++wrong;
      ++looks;
    }
  }
  void change() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    if (moving_.size() == kStaying || (!moving_.empty() && (state_ >> 60) < 8)) {
      const std::size_t victim = (state_ >> 32) % moving_.size();
      index_.erase(moving_[victim].second);
      moving_[victim] = moving_.back();
      moving_.pop_back();
      return;
    }
    const std::uint64_t number = kStaying + (state_ >> 32) % kStaying;
    if (index_.reader.find(id_of(number), 0)) return;
    const bool scattered = (state_ >> 20) % 2 == 0 && index_.writer.has_list_for(2);
    moving_.emplace_back(number, index_.put(id_of(number), scattered ? two_places(number) : one_place(number)));
  }
  bool has_what_it_should() const {
    return std::all_of(moving_.begin(), moving_.end(), [&](const auto& entry) {
      return index_.reader.find(id_of(entry.first), 0)->slot == entry.second;
    });
  }

  std::atomic<std::uint64_t> looks{0}, wrong{0};

 private:
  static constexpr std::uint64_t kStaying = 48;
  static std::vector<Place> one_place(std::uint64_t number) { return {{0, number * 64, 64}}; }
  static std::vector<Place> two_places(std::uint64_t number) {
    return {{0, number * 64, 64}, {1, number * 64, number}};
  }

  Index index_;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> moving_;
  std::uint64_t state_ = 1;
};

TEST(SharedIndex, NeverHidesWhatIsThere) {
  ChangingIndex index;
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int thread = 0; thread < 2; ++thread) {
    readers.emplace_back([&] {
      while (!stop) index.look_at_all();
    });
  }
  for (int change = 0; change < 60000 || index.looks < 20000; ++change) index.change();
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(index.wrong, 0u);
  EXPECT_TRUE(index.has_what_it_should());
}

}  // namespace
}  // namespace kvferry::store
