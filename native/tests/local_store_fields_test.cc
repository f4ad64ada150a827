// Reports from the field (by their sections), as far as one node's store can have them.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/one_sided.h"
#include "store_fixture.h"

namespace kvferry::store {
namespace {

using testing::digest_for;
using testing::id_of;
using testing::soon;
using testing::StoreOnMemory;

constexpr std::uint64_t kMiB = 1u << 20;

NodeOptions of_size(std::uint64_t dram_bytes) {
  NodeOptions options;
  options.dram_bytes = dram_bytes;
  return options;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

bool at_length() { return std::getenv("KVFERRY_LONG") != nullptr; }

std::uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * 4096;
}

std::vector<std::byte> slow_copy(const StoreOnMemory& node, const std::vector<Place>& places, milliseconds pause) {
  const OneSidedAccess one_sided;
  std::vector<std::byte> copy;
  for (const Place& place : places) {
    const auto source = node.arenas()[place.arena].subspan(place.offset, place.length);
    copy.insert(copy.end(), source.begin(), source.begin() + static_cast<std::ptrdiff_t>(source.size() / 2));
    std::this_thread::sleep_for(pause);
    copy.insert(copy.end(), source.begin() + static_cast<std::ptrdiff_t>(source.size() / 2), source.end());
  }
  return copy;
}

// 4.1: the reader's lease ends in the middle of a slow read, while others evict and refill.
TEST(FieldReports, NoReadIsMixedWhenItsLeaseEnds) {
  NodeOptions options = of_size(4 * kMiB);
  options.pin_lease = milliseconds(1);
  StoreOnMemory node(options);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t number = 0; !stop; ++number) {
      EXPECT_TRUE(node.put(StoreOnMemory::object(number % 8, kMiB), number).ok());
      if (number % 3 == 0) (void)node->remove(id_of((number + 5) % 8));
    }
  });
  std::uint64_t right = 0, refused = 0, mixed = 0;
  const std::uint64_t rounds = at_length() ? 1000 : 60;
  const Deadline deadline = deadline_in(std::chrono::minutes(at_length() ? 10 : 1));
  while ((right + refused < rounds || refused == 0 || right == 0) && !expired(deadline)) {
    const std::uint64_t round = right + refused;
    const ObjectId id = id_of(round % 8);
    const auto pinned = node->pin(1, id, soon());
    if (!pinned.ok()) {
      EXPECT_EQ(pinned.status().code(), Code::kNotFound);
      std::this_thread::yield();
      continue;
    }
    std::vector<std::byte> copy = slow_copy(node, pinned->places, milliseconds(round % 8 == 0 ? 250 : round % 2));
    // It may have raced; whether the pin was there all the while tells what the bytes are worth.
    if (!node->unpin(1, pinned->pin)) {
      ++refused;
      continue;
    }
    ++right;
    if (!testing::holds({std::span(copy)}, id, pinned->held.digest.hi ^ id.hi, {{0, 0, kMiB}})) ++mixed;
  }
  EXPECT_GT(right, 0u);
  EXPECT_GT(refused, 0u);
  EXPECT_EQ(mixed, 0u);
  stop = true;
  writer.join();
}

// 4.8: several put one key, with the same and with other bytes.
TEST(FieldReports, RacingPutsOfOneKeyHaveOneWinner) {
  StoreOnMemory node(of_size(16 * kMiB));
  const std::uint64_t rounds = at_length() ? 1000 : 200;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    std::atomic<int> created{0}, existing{0}, conflicts{0};
    std::vector<std::thread> writers;
    for (std::uint64_t writer = 0; writer < 8; ++writer) {
      writers.emplace_back([&, writer] {
        const NewObject object = StoreOnMemory::object(round, 100);
        const ContentDigest digest = digest_for(object.id, round % 2 == 0 ? 0 : writer % 2);
        const auto reserved = node->reserve(writer + 1, object, soon());
        ASSERT_TRUE(reserved.ok());
        if (reserved->existing) {
          ++(reserved->existing->digest == digest ? existing : conflicts);
          return;
        }
        const auto made = node->commit(writer + 1, reserved->put, digest);
        if (!made.ok()) {
          EXPECT_EQ(made.status().code(), Code::kConflict);
          ++conflicts;
        } else {
          ++(*made ? created : existing);
        }
      });
    }
    for (std::thread& writer : writers) writer.join();
    ASSERT_EQ(created, 1);
    ASSERT_EQ(existing, round % 2 == 0 ? 7 : 3);
    ASSERT_EQ(conflicts, round % 2 == 0 ? 0 : 4);
  }
}

// 6.1: sixteen times as much as the pool holds.
TEST(FieldReports, AFullPoolTakesPuts) {
  StoreOnMemory node(of_size(64 * kMiB));
  const auto client = node.new_client();
  ASSERT_TRUE(node.put(100000, kMiB).ok());
  const auto pinned = client->pin(id_of(100000));
  ASSERT_TRUE(pinned.ok() && *pinned);
  for (std::uint64_t number = 0; number < 1024; ++number) {
    const auto reserved = node->reserve(1, StoreOnMemory::object(number, kMiB), soon());
    ASSERT_TRUE(reserved.ok()) << number << ": " << reserved.status().to_string();
    ASSERT_TRUE(node->commit(1, reserved->put, digest_for(id_of(number))).ok());
  }
  EXPECT_TRUE(node.intact(id_of(100000), (*pinned)->places));
  EXPECT_GE(node->stats().objects, 56u);
}

// 6.3.
TEST(FieldReports, AnySizeComesBackOrIsRefused) {
  StoreOnMemory node(of_size(32 * kMiB));
  const auto client = node.new_client();
  const std::vector<std::uint64_t> sizes{0, 1, 63, 64, 65, 4095, 4096, 4097, 16 * kMiB + 1, 32 * kMiB};
  for (std::uint64_t i = 0; i < sizes.size(); ++i) {
    ASSERT_TRUE(node.put(i, sizes[i]).ok()) << sizes[i];
    const auto pinned = client->pin(id_of(i));
    ASSERT_TRUE(pinned.ok() && *pinned) << sizes[i];
    EXPECT_EQ((*pinned)->held.bytes, sizes[i]);
    EXPECT_EQ((*pinned)->places.empty(), sizes[i] == 0);
    EXPECT_TRUE(node.intact(id_of(i), (*pinned)->places)) << sizes[i];
    client->unpin(**pinned);
  }
  for (const std::uint64_t size : {32 * kMiB + 1, std::uint64_t{1} << 40, UINT64_MAX - 1, UINT64_MAX}) {
    EXPECT_EQ(node.put(1000, size).code(), Code::kOutOfRange) << size;
  }
  EXPECT_TRUE(node.has(sizes.size() - 1));  // nothing was given up for what could not be held
}

// 6.3: lengths past 32 bits, on memory that is there only where it is touched.
TEST(FieldReports, LengthsPast32BitsAreWhole) {
  StoreOnMemory node(of_size(10ull << 30));
  const std::uint64_t bytes = (2ull << 30) + 1;
  for (const std::uint64_t number : {1u, 2u, 3u, 4u}) {
    const auto reserved = node->reserve(1, StoreOnMemory::object(number, bytes), soon());
    ASSERT_TRUE(reserved.ok());
    ASSERT_TRUE(node->commit(1, reserved->put, {}).ok());
  }
  const auto client = node.new_client();
  const auto big = client->pin(id_of(1));
  ASSERT_TRUE(big.ok() && *big);
  ASSERT_EQ((*big)->places.size(), 1u);
  EXPECT_EQ((*big)->places[0].length, bytes);
  const auto memory = client->memory((*big)->places[0]);
  ASSERT_EQ(memory.size(), bytes);
  memory.back() = std::byte{7};
  const auto reserved = node->reserve(1, StoreOnMemory::object(5, 9ull << 30), soon());
  EXPECT_EQ(reserved.status().code(), Code::kResourceExhausted);
  client->unpin(**big);
  EXPECT_TRUE(node->reserve(1, StoreOnMemory::object(5, 9ull << 30), soon()).ok());
  node->end_session(1);
}

// 6.4: what the node keeps for each object, and that it stays so however many come and go.
TEST(FieldReports, MetadataStaysFlat) {
  const std::uint64_t most = at_length() ? 1'000'000 : kSanitized ? 30'000 : 150'000;
  NodeOptions options = of_size(most * 64 * 2);
  options.max_objects = most;
  options.policy = PolicyKind::kPrefix;
  StoreOnMemory node(options);
  const auto put = [&](std::uint64_t number) {
    NewObject object;
    object.key = std::to_string(number);
    object.key.insert(0, 32 - object.key.size(), '0');
    object.id = ObjectIds("").of(object.key);
    if (number % 16 != 0) object.parent = id_of(number - 1);
    object.depth = number % 16;
    object.bytes = 64;
    const auto reserved = node->reserve(1, object, soon());
    ASSERT_TRUE(reserved.ok());
    ASSERT_TRUE(node->commit(1, reserved->put, {number, number}).ok());
  };
  for (std::uint64_t number = 0; number < most; ++number) put(number);
  const auto full = node->stats();
  const std::uint64_t resident = resident_bytes();
  ASSERT_EQ(full.objects, most);
  EXPECT_LT(full.metadata_bytes, most * 200);
  std::printf("%llu objects, %.1f bytes of metadata each\n", static_cast<unsigned long long>(most),
              static_cast<double>(full.metadata_bytes) / static_cast<double>(most));
  for (std::uint64_t number = most; number < 2 * most; ++number) put(number);
  EXPECT_EQ(node->stats().objects, most);
  EXPECT_EQ(node.counter("evicted_total"), most);
  // Room for what a policy remembers of ids that went.
  EXPECT_LT(node->stats().metadata_bytes, most * 200);
  // A sanitizer keeps memory that was freed.
  if (!kSanitized) {
    EXPECT_LT(resident_bytes(), resident + resident / 8);
  }
}

}  // namespace
}  // namespace kvferry::store
