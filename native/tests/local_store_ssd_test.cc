// The SSD tier of a node's store: what goes there, what comes back, and what a disk that is slow, full or broken costs.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "log_fixture.h"
#include "store/object_attributes.h"
#include "store_fixture.h"

namespace kvferry::store {
namespace {

using kvferry::testing::FaultyDisk;
using kvferry::testing::TemporaryFolder;
using testing::digest_for;
using testing::eventually;
using testing::id_of;
using testing::soon;
using testing::StoreOnMemory;

constexpr std::uint64_t kMiB = 1u << 20;

// As they are: somebody may be writing to them.
void copy_folder(const std::string& from, const std::string& to) {
  std::filesystem::create_directory(to);
  std::filesystem::permissions(to, std::filesystem::perms::owner_all);
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    std::ifstream in(entry.path(), std::ios::binary);
    if (!in || in.peek() == std::ifstream::traits_type::eof()) continue;  // renamed meanwhile, or empty
    std::ofstream(std::filesystem::path(to) / entry.path().filename(), std::ios::binary) << in.rdbuf();
  }
}

class SsdStore : public ::testing::Test {
 protected:
  NodeOptions options(std::uint64_t dram_bytes = 4 * kMiB, std::uint64_t ssd_bytes = 128 * kMiB) const {
    NodeOptions options;
    options.dram_bytes = dram_bytes;
    options.max_objects = 4096;
    options.policy = PolicyKind::kLru;
    options.ssd_directory = folder_.file("ssd");
    options.ssd_bytes = ssd_bytes;
    return options;
  }
  void open(const NodeOptions& options) {
    node_.reset();
    node_ = std::make_unique<StoreOnMemory>(options, 1, disk_);
  }
  StoreOnMemory& node() { return *node_; }
  std::uint64_t counter(const std::string& name) const { return node_->counter(name); }
  Tier tier_of(std::uint64_t number) const { return (*node_)->find(id_of(number))->tier; }
  // Pins, looks at every byte, unpins.
  bool reads_right(std::uint64_t number, std::uint64_t version = 0) const {
    const auto pinned = (*node_)->pin(1, id_of(number), soon());
    EXPECT_TRUE(pinned.ok()) << number << ": " << pinned.status().to_string();
    if (!pinned.ok()) return false;
    const bool right = node_->intact(id_of(number), pinned->places, version);
    return (*node_)->unpin(1, pinned->pin) && right;
  }
  void put_all(std::uint64_t count, std::uint64_t bytes) {
    for (std::uint64_t number = 0; number < count; ++number) {
      const Status status = node_->put(number, bytes);
      ASSERT_TRUE(status.ok()) << number << ": " << status.to_string();
    }
  }

  void count_dropped() {
    (*node_)->on_dropped([this](std::span<const ObjectId> ids) { dropped_ += ids.size(); });
  }

  TemporaryFolder folder_;
  // What the node calls back: as long as the node, which outlives the body of a test.
  std::atomic<std::uint64_t> dropped_{0};
  std::shared_ptr<FaultyDisk> disk_;
  std::unique_ptr<StoreOnMemory> node_;
};

TEST_F(SsdStore, KeepsWhatMemoryHasNoRoomFor) {
  open(options());
  put_all(32, kMiB);
  EXPECT_EQ(node()->stats().objects, 32u) << counter("ssd_skipped_total");
  EXPECT_LE(node()->stats().dram_objects, 4u);
  EXPECT_GE(node()->stats().ssd_used, 28 * kMiB);
  for (std::uint64_t number = 0; number < 32; ++number) EXPECT_TRUE(reads_right(number)) << number;
  EXPECT_GE(counter("ssd_hits_total"), 28u);
  // What was brought back is on SSD, too: letting go of it again writes nothing.
  const std::uint64_t written = counter("ssd_written_total");
  EXPECT_LE(written, 32u);
  for (std::uint64_t number = 0; number < 32; ++number) EXPECT_TRUE(reads_right(number)) << number;
  EXPECT_LE(counter("ssd_written_total"), 32u);
  EXPECT_EQ(counter("evicted_total"), 0u);
}

// All that could leave memory is being read, and what is free is in too many pieces: to wait would be in vain.
TEST_F(SsdStore, RefusesAtOnceWhatOnlyReadersCouldMakeRoomFor) {
  constexpr std::uint64_t kPieces = 256;
  NodeOptions options = this->options(kPieces * 4096);
  options.watermark_high = 1;
  open(options);
  put_all(kPieces, 4096);
  std::vector<PinId> pins;
  for (std::uint64_t number = 0; number < kPieces; number += 2) {
    const auto pinned = node()->pin(1, id_of(number), soon());
    ASSERT_TRUE(pinned.ok()) << pinned.status().to_string();
    pins.push_back(pinned->pin);
    ASSERT_TRUE(node()->remove(id_of(number + 1)));
  }
  ASSERT_GE(node()->stats().dram_bytes - node()->stats().dram_used, 128u * 4096);
  EXPECT_EQ(node().put(kPieces, 200'000).code(), Code::kResourceExhausted);
  for (const PinId pin : pins) ASSERT_TRUE(node()->unpin(1, pin));
  EXPECT_TRUE(node().put(kPieces, 200'000).ok());
}

TEST_F(SsdStore, TellsClientsWhereTheBytesAre) {
  open(options());
  const auto client = node().new_client();
  put_all(16, kMiB);
  ASSERT_TRUE(eventually([&] { return client->find(id_of(0))->tier == Tier::kSsd; }));
  EXPECT_EQ(client->find(id_of(0))->digest, digest_for(id_of(0)));
  const auto in_place = client->pin(id_of(0));
  ASSERT_TRUE(in_place.ok());
  EXPECT_FALSE(*in_place);
  const auto pinned = node()->pin(1, id_of(0), soon());
  ASSERT_TRUE(pinned.ok());
  EXPECT_EQ(client->find(id_of(0))->tier, Tier::kDram);
  EXPECT_TRUE(*client->pin(id_of(0)));
}

TEST_F(SsdStore, FindsItsObjectsAgain) {
  NodeOptions with_write_through = options();
  with_write_through.ssd_write = WriteMode::kWriteThrough;
  open(with_write_through);
  for (std::uint64_t number = 0; number < 12; ++number) {
    NewObject object = StoreOnMemory::object(number, 100000 + number);
    object.tenant = "tenant";
    object.tags = {"even", std::string(255, 't')};
    object.replicas = 3;
    object.parent = id_of(number + 1);
    object.depth = 7;
    if (number == 1) object.expires_in = std::chrono::hours(1);
    if (number == 2) object.expires_in = milliseconds(200);
    ASSERT_TRUE(node().put(object).ok());
  }
  ASSERT_TRUE(node().put(100, 0).ok());
  NewObject wordy = StoreOnMemory::object(101, 1);  // as much beside its bytes as an object may have
  wordy.key = std::string(kMaxKeyBytes, 'k');
  wordy.tenant = std::string(kMaxTenantBytes, 't');
  wordy.tags.assign(16, std::string(255, 't'));
  ASSERT_TRUE(node().put(wordy).ok());
  EXPECT_TRUE(node()->remove(id_of(3)));
  ASSERT_TRUE(eventually([&] { return counter("ssd_written_total") >= 13; }));
  EXPECT_EQ(tier_of(5), Tier::kDram);
  std::this_thread::sleep_for(milliseconds(250));
  open(options());
  EXPECT_EQ(node()->stats().objects, 12u);
  EXPECT_EQ(node()->stats().ssd_objects, 12u);
  EXPECT_EQ(counter("ssd_recovered_total"), 12u);
  EXPECT_EQ(node()->describe(id_of(101))->tags, wordy.tags);
  EXPECT_EQ(node()->describe(id_of(101))->key, wordy.key);
  EXPECT_FALSE(node().has(2) || node().has(3));
  EXPECT_EQ(node()->find(id_of(100))->bytes, 0u);
  EXPECT_TRUE(reads_right(100));
  for (const std::uint64_t number : {0u, 1u, 4u, 11u}) {
    EXPECT_TRUE(reads_right(number));
    const auto object = node()->describe(id_of(number));
    ASSERT_TRUE(object);
    EXPECT_EQ(object->key, testing::key_of(number));
    EXPECT_EQ(object->tenant, "tenant");
    EXPECT_EQ(object->tags, (std::vector<std::string>{"even", std::string(255, 't')}));
    EXPECT_EQ(object->replicas, 3u);
    EXPECT_EQ(object->parent, id_of(number + 1));
    EXPECT_EQ(object->depth, 7u);
    EXPECT_EQ(object->expires_in.has_value(), number == 1);
    EXPECT_EQ(node()->find(id_of(number))->digest, digest_for(id_of(number)));
  }
  EXPECT_LE(*node()->describe(id_of(1))->expires_in, std::chrono::hours(1));
  EXPECT_GT(*node()->describe(id_of(1))->expires_in, std::chrono::minutes(55));
  EXPECT_EQ(node()->with_tag("tenant", "even").size(), 10u);
  EXPECT_EQ(node()->reserve(1, StoreOnMemory::object(4, 100004), soon())->existing->tier, Tier::kDram);
}

TEST_F(SsdStore, RemovedObjectsStayRemoved) {
  open(options());
  put_all(16, kMiB);
  ASSERT_TRUE(eventually([&] { return tier_of(0) == Tier::kSsd; }));
  EXPECT_TRUE(node()->remove(id_of(0)));
  EXPECT_EQ(node()->pin(1, id_of(0), soon()).status().code(), Code::kNotFound);
  // As after kill -9: the log is opened as it is now.
  const std::string copy = folder_.file("copy");
  copy_folder(folder_.file("ssd"), copy);
  NodeOptions elsewhere = options();
  elsewhere.ssd_directory = copy;
  const StoreOnMemory again(elsewhere);
  EXPECT_FALSE(again.has(0));
  EXPECT_TRUE(again.has(1));
}

// Evicted, put again with other bytes, and killed before the older record was erased.
TEST_F(SsdStore, FindsTheNewerOfTwoVersions) {
  LogOptions log_options;
  log_options.directory = folder_.file("ssd");
  log_options.capacity = 128 * kMiB;
  auto log = Log::open(log_options, [](const LogRecord&, const LogPlace&) {});
  ASSERT_TRUE(log.ok()) << log.status().to_string();
  const std::vector<std::byte> bytes(100);
  const std::span<const std::byte> piece(bytes);
  const std::string attributes = encode_attributes({}, kNoWallExpiry);
  const auto append = [&](std::uint64_t number, std::uint64_t version) {
    const std::string key = testing::key_of(number);
    const LogRecord record{id_of(number), key, 100, digest_for(id_of(number), version), attributes};
    ASSERT_TRUE((*log)->append(record, std::span(&piece, 1), soon()).ok());
  };
  append(1, 0);
  append(2, 0);
  append(2, 1);
  append(3, 0);
  append(3, 0);
  append(4, 0);
  EXPECT_TRUE((*log)->append({id_of(5), "k", 100, {}, "nonsense"}, std::span(&piece, 1), soon()).ok());
  log->reset();
  for (int start = 0; start < 2; ++start) {
    open(options());
    EXPECT_TRUE(node().has(1) && node().has(3) && node().has(4));
    EXPECT_EQ(node()->find(id_of(2))->digest, digest_for(id_of(2), 1));
    EXPECT_FALSE(node().has(5));
    EXPECT_EQ(node()->stats().objects, 4u);
  }
}

TEST_F(SsdStore, BringsBackAheadOfTime) {
  open(options());
  put_all(16, kMiB);
  ASSERT_TRUE(eventually([&] { return tier_of(0) == Tier::kSsd && tier_of(1) == Tier::kSsd; }));
  const std::vector<ObjectId> ids{id_of(0), id_of(1), id_of(999)};
  node()->prefetch(ids);
  EXPECT_TRUE(eventually([&] { return tier_of(0) == Tier::kDram && tier_of(1) == Tier::kDram; }));
}

TEST_F(SsdStore, ReadsAnObjectOnceForAllThatAsk) {
  open(options());
  put_all(16, kMiB);
  ASSERT_TRUE(eventually([&] { return tier_of(0) == Tier::kSsd; }));
  const std::uint64_t before = counter("ssd_hits_total");
  std::vector<std::thread> readers;
  for (int i = 0; i < 8; ++i) readers.emplace_back([&] { EXPECT_TRUE(reads_right(0)); });
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(counter("ssd_hits_total"), before + 1);
}

TEST_F(SsdStore, GivesUpOldObjectsWhenTheDiskIsFull) {
  open(options(4 * kMiB, 32 * kMiB));
  count_dropped();
  put_all(100, kMiB);
  EXPECT_GT(counter("ssd_evicted_total"), 40u);
  EXPECT_GT(node()->stats().ssd_objects, 8u);
  EXPECT_LE(node()->stats().ssd_used, 32 * kMiB);
  EXPECT_TRUE(eventually([&] { return dropped_ + node()->stats().objects == 100; }));
  std::uint64_t right = 0;
  for (std::uint64_t number = 0; number < 100; ++number) {
    if (node().has(number)) right += reads_right(number) ? 1u : 0u;
  }
  EXPECT_GT(right, 8u);
  EXPECT_TRUE(node()->check().ok());
}

TEST_F(SsdStore, DropsWhatADeadDiskDoesNotTake) {
  disk_ = std::make_shared<FaultyDisk>();
  open(options());
  put_all(8, kMiB);
  disk_->fail_requests([](IoRequest*) { return std::optional<std::int64_t>(-EIO); });
  disk_->fail_files([](const std::string&, const std::string& path) { return Status(Code::kUnavailable, path); });
  const auto start = Clock::now();
  for (std::uint64_t number = 100; number < 200; ++number) ASSERT_TRUE(node().put(number, kMiB).ok());
  // It waits for a disk a few times, not for each object.
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
  EXPECT_GT(counter("ssd_skipped_total"), 80u);
  EXPECT_GT(counter("ssd_errors_total"), 0u);
  const auto degraded = node()->stats().degraded;
  ASSERT_EQ(degraded.size(), 1u);
  EXPECT_TRUE(degraded[0].starts_with("ssd: ")) << degraded[0];
  EXPECT_TRUE(reads_right(199));

  disk_->heal();
  std::uint64_t number = 200;
  EXPECT_TRUE(eventually([&] {
    EXPECT_TRUE(node().put(++number, kMiB).ok());
    return node()->stats().degraded.empty();
  }));
  EXPECT_TRUE(node()->check().ok());
}

TEST_F(SsdStore, TellsThatItsDirectoryIsGone) {
  NodeOptions small = options();
  small.ssd_directory = folder_.file("gone");
  open(small);
  std::filesystem::remove_all(small.ssd_directory);
  std::uint64_t number = 0;
  EXPECT_TRUE(eventually([&] {
    EXPECT_TRUE(node().put(++number, kMiB).ok());
    return !node()->stats().degraded.empty();
  }));
  const auto degraded = node()->stats().degraded;
  ASSERT_EQ(degraded.size(), 1u);
  EXPECT_NE(degraded[0].find("make its directory again"), std::string::npos) << degraded[0];
  EXPECT_GT(counter("ssd_errors_total"), 0u);
  std::filesystem::create_directory(small.ssd_directory);
  EXPECT_TRUE(eventually([&] {
    EXPECT_TRUE(node().put(++number, kMiB).ok());
    return node()->stats().degraded.empty();
  }));
}

// Ten times what memory holds, from two writers at once, while somebody reads what is on the disk already.
class BurstOnASlowDisk : public SsdStore, public ::testing::WithParamInterface<WriteMode> {};

TEST_P(BurstOnASlowDisk, LosesNothing) {
  constexpr std::uint64_t kObjects = 40;
  disk_ = std::make_shared<FaultyDisk>();
  NodeOptions slowly = options();
  slowly.ssd_write = GetParam();
  open(slowly);
  disk_->fail_requests([](IoRequest*) {
    std::this_thread::sleep_for(milliseconds(3));
    return std::optional<std::int64_t>();
  });
  put_all(8, kMiB);
  ASSERT_TRUE(eventually([&] { return tier_of(0) == Tier::kSsd; }));
  std::vector<std::thread> threads;
  for (std::uint64_t writer = 1; writer <= 2; ++writer) {
    threads.emplace_back([&, first = writer * 100] {
      for (std::uint64_t number = first; number < first + kObjects / 2; ++number) {
        const Status status = node().put(number, kMiB);
        EXPECT_TRUE(status.ok()) << number << ": " << status.to_string();
      }
    });
  }
  threads.emplace_back([&] {
    for (std::uint64_t number = 0; number < 8; ++number) EXPECT_TRUE(reads_right(number)) << number;
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter("ssd_skipped_total"), 0u);
  EXPECT_EQ(counter("evicted_total"), 0u);
  EXPECT_EQ(node()->stats().objects, kObjects + 8);
  EXPECT_TRUE(node()->stats().degraded.empty());
  disk_->heal();
  for (std::uint64_t number = 100; number < 100 + kObjects / 2; ++number) {
    EXPECT_TRUE(reads_right(number)) << number;
    EXPECT_TRUE(reads_right(number + 100)) << number + 100;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, BurstOnASlowDisk, ::testing::Values(WriteMode::kWriteBack, WriteMode::kWriteThrough),
                         [](const auto& mode) { return mode.param == WriteMode::kWriteBack ? "Back" : "Through"; });

// As many objects as there may be, and each is being written: one of them can go soon.
TEST_F(SsdStore, WaitsForAPlaceOfAnObjectThatIsBeingWritten) {
  disk_ = std::make_shared<FaultyDisk>();
  NodeOptions few = options();
  few.max_objects = 2;
  few.ssd_write = WriteMode::kWriteThrough;
  open(few);
  const auto stuck = std::make_shared<std::atomic<bool>>(true);
  disk_->fail_requests([stuck](IoRequest*) {
    while (*stuck) std::this_thread::sleep_for(milliseconds(1));
    return std::optional<std::int64_t>();
  });
  for (std::uint64_t number = 0; number < 2; ++number) {
    ASSERT_TRUE(node().put(number, 4096).ok());
    std::this_thread::sleep_for(milliseconds(50));  // each of the movers has taken one, most likely
  }
  std::thread later([stuck] {
    std::this_thread::sleep_for(milliseconds(200));
    *stuck = false;
  });
  const Status status = node().put(2, 4096);
  later.join();
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST_F(SsdStore, WaitsForAStuckDiskForAWhileOnly) {
  disk_ = std::make_shared<FaultyDisk>();
  open(options());
  put_all(3, kMiB);
  const auto stuck = std::make_shared<std::atomic<bool>>(true);
  disk_->fail_requests([stuck](IoRequest*) {
    while (*stuck) std::this_thread::sleep_for(milliseconds(1));
    return std::optional<std::int64_t>();
  });
  const auto start = Clock::now();
  Status status;
  std::uint64_t number = 100;
  for (; status.ok(); ++number) {  // as much as fits; then one that has no more time than this
    const auto reserved = node()->reserve(1, StoreOnMemory::object(number, kMiB), deadline_in(milliseconds(50)));
    status = reserved.status();
    if (!reserved.ok()) break;
    EXPECT_TRUE(node().commit(1, reserved->put, digest_for(id_of(number))).ok());
  }
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.to_string();
  const std::uint64_t skipped_before = counter("ssd_skipped_total");
  const bool degraded_before = !node()->stats().degraded.empty();
  if (Clock::now() - start < std::chrono::seconds(6)) {  // unless this machine itself stood still
    EXPECT_EQ(skipped_before, 0u);
    EXPECT_FALSE(degraded_before);
  }
  // Who can wait gets through once it is clear that the disk does not go on; those after it need not wait at all.
  for (number = 200; number < 280; ++number) ASSERT_TRUE(node().put(number, kMiB).ok());
  EXPECT_GE(Clock::now() - start, std::chrono::seconds(6));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(100));  // each of them waiting would be 480
  EXPECT_GT(counter("ssd_skipped_total"), 50u);
  const auto degraded = node()->stats().degraded;
  ASSERT_EQ(degraded.size(), 1u);
  EXPECT_NE(degraded[0].find("the disk has ended no write for"), std::string::npos) << degraded[0];
  *stuck = false;
  EXPECT_TRUE(reads_right(279));
  EXPECT_TRUE(eventually([&] {
    EXPECT_TRUE(node().put(++number, kMiB).ok());
    return node()->stats().degraded.empty();
  }));
  const std::uint64_t skipped = counter("ssd_skipped_total");
  for (number = 9000; number < 9010; ++number) ASSERT_TRUE(node().put(number, kMiB).ok());
  EXPECT_EQ(counter("ssd_skipped_total"), skipped);
}

// A file system that takes something now and then only.
TEST_F(SsdStore, StaysDegradedWhileAFullDiskTakesLittle) {
  disk_ = std::make_shared<FaultyDisk>();
  open(options());
  disk_->fail_files([asked = 0](const std::string& what, const std::string& path) mutable {
    if (what != "create" || ++asked % 8 == 0) return Status();
    return errno_status(Code::kResourceExhausted, path, ENOSPC);
  });
  std::uint64_t number = 0;
  const auto degraded = [&] { return !node()->stats().degraded.empty(); };
  ASSERT_TRUE(eventually([&] {
    EXPECT_TRUE(node().put(++number, kMiB).ok());
    return degraded();
  }));
  EXPECT_NE(node()->stats().degraded[0].find("errno 28"), std::string::npos) << node()->stats().degraded[0];
  const std::uint64_t before = counter("ssd_written_total");
  for (int i = 0; i < 60; ++i) {
    const auto start = Clock::now();
    ASSERT_TRUE(node().put(++number, kMiB).ok());
    const bool still = degraded();
    EXPECT_TRUE(still || Clock::now() - start > std::chrono::seconds(1)) << i;  // a machine that stood still
  }
  EXPECT_GT(counter("ssd_written_total"), before);
  EXPECT_GT(counter("ssd_skipped_total"), 0u);
  disk_->heal();
  EXPECT_TRUE(eventually([&] {
    EXPECT_TRUE(node().put(++number, kMiB).ok());
    return !degraded();
  }));
}

TEST_F(SsdStore, TellsWhenItCannotRead) {
  disk_ = std::make_shared<FaultyDisk>();
  open(options());
  put_all(16, kMiB);
  ASSERT_TRUE(eventually([&] { return tier_of(0) == Tier::kSsd; }));
  disk_->fail_requests([](IoRequest*) { return std::optional<std::int64_t>(-EIO); });
  const Status failed = node()->pin(1, id_of(0), soon()).status();
  EXPECT_FALSE(failed.ok());
  EXPECT_NE(failed.code(), Code::kDataCorrupt) << failed.to_string();
  EXPECT_TRUE(node()->check().ok());
  disk_->heal();
  EXPECT_TRUE(reads_right(0));
}

TEST_F(SsdStore, ForgetsObjectsWhoseBytesRotted) {
  open(options());
  count_dropped();
  put_all(16, kMiB);
  ASSERT_TRUE(eventually([&] { return tier_of(0) == Tier::kSsd; }));
  for (const std::string& path : kvferry::testing::segment_files(folder_.file("ssd"))) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    for (std::uint64_t at = 8192; at < std::filesystem::file_size(path); at += 4096) {
      file.seekp(static_cast<std::streamoff>(at));
      file.put('x');
    }
  }
  EXPECT_EQ(node()->pin(1, id_of(0), soon()).status().code(), Code::kDataCorrupt);
  EXPECT_FALSE(node().has(0));
  EXPECT_EQ(node()->pin(1, id_of(0), soon()).status().code(), Code::kNotFound);
  EXPECT_GE(counter("ssd_corrupt_total"), 1u);
  EXPECT_TRUE(eventually([&] { return dropped_ >= 1; }));
  EXPECT_TRUE(node().put(0, kMiB).ok());
  EXPECT_TRUE(reads_right(0));
}

TEST_F(SsdStore, AsksAnotherNodeFirst) {
  NodeOptions remote = options();
  remote.demote_to_remote = true;
  open(remote);
  node()->on_demote([asked = 0](const ObjectId&) mutable { return ++asked % 2 == 1; });
  count_dropped();
  put_all(32, kMiB);
  EXPECT_TRUE(eventually([&] { return dropped_ == counter("demoted_remote_total") && dropped_ > 8; }));
  EXPECT_EQ(node()->stats().objects + dropped_, 32u);
  EXPECT_GT(node()->stats().ssd_objects, 8u);
}

TEST_F(SsdStore, RefusesADirectoryThatItCannotUse) {
  std::ofstream(folder_.file("ssd")) << "a file";
  testing::SharedBlock index(LocalStore::index_bytes(options())), pins(LocalStore::pins_bytes(options())), arena(kMiB);
  LocalStoreOptions local;
  local.arenas = {arena.span()};
  local.index = index.span();
  local.pins = pins.span();
  local.node = options();
  const auto refused = LocalStore::create(std::move(local));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find(folder_.file("ssd")), std::string::npos) << refused.status().to_string();
}

// The disk of this machine may have ended no write for 6 s; the node says so, rightly.
void expect_no_trouble_but_a_disk_that_stands_still(const std::vector<std::string>& degraded) {
  for (const std::string& reason : degraded) {
    EXPECT_NE(reason.find("the disk has ended no write for"), std::string::npos) << reason;
  }
}

// Writers, readers that bring back, removals and prefetches at once, with everything checked.
TEST_F(SsdStore, StaysRightUnderLoad) {
  constexpr std::uint64_t kNumbers = 200;
  open(options(2 * kMiB, 32 * kMiB));
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> puts{0}, hits{0}, wrong{0};
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 1; thread <= 2; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint64_t step = thread << 32; !stop; ++step) {
        const std::uint64_t number = step * 7919 % kNumbers;
        if (step % 5 == 0) (void)node()->remove(id_of(number));
        const Status status = node().put(StoreOnMemory::object(number, 1 + number * 977 % 60000), step, thread);
        if (status.ok()) ++puts;
        EXPECT_TRUE(status.ok() || status.code() == Code::kConflict || status.code() == Code::kResourceExhausted)
            << status.to_string();
      }
    });
    threads.emplace_back([&, thread] {
      for (std::uint64_t step = 0; !stop; ++step) {
        const ObjectId id = id_of(step * (6007 + thread) % kNumbers);
        if (step % 50 == 0) node()->prefetch(std::span(&id, 1));
        const auto pinned = node()->pin(thread, id, soon());
        if (!pinned.ok()) continue;
        if (!node().intact(id, pinned->places, pinned->held.digest.hi ^ id.hi)) ++wrong;
        if (!node()->unpin(thread, pinned->pin)) ++wrong;
        ++hits;
      }
    });
  }
  EXPECT_TRUE(eventually([&] { return puts > 1500 && hits > 1500 && counter("ssd_hits_total") > 100; }))
      << puts << " " << hits << " " << counter("ssd_hits_total");
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
  expect_no_trouble_but_a_disk_that_stands_still(node()->stats().degraded);
}

}  // namespace
}  // namespace kvferry::store
