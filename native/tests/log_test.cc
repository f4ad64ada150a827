// The store's log on a disk that works.
#include "store/log/log.h"

#include <gtest/gtest.h>

#include <thread>

#include "log_fixture.h"

namespace kvferry::testing {
namespace {

const std::vector<std::uint64_t> kSizes = {0,     1,     100,   4095,   4096,   4097,          16383,           16384,
                                           65535, 65536, 65537, 200000, 262144, (1 << 20) + 3, (5 << 20) + 4095};

TEST_F(LogTest, ReadsWhatWasAppendedNowAndAfterARestart) {
  open();
  std::vector<Object> objects;
  for (const std::uint64_t size : kSizes) objects.push_back({objects.size() + 1, size});
  std::vector<LogPlace> places;
  for (const Object& object : objects) places.push_back(must_append(object));
  for (std::size_t i = 0; i < objects.size(); ++i) EXPECT_OK(check(*log_, objects[i], places[i]));
  reopen();
  ASSERT_EQ(recovered_.found.size(), objects.size());
  for (const Object& object : objects) EXPECT_OK(check(*log_, object, recovered_.found.at(object.number).place));
  EXPECT_EQ(log_->usage().live_records, objects.size());
}

TEST_F(LogTest, AppendsABatchInOrderWithOneResultEach) {
  LogOptions large = options();
  large.capacity = 128 * kSegment;
  large.segment_bytes = 8 * kSegment;
  open(large);
  std::vector<Object> objects;
  for (std::uint64_t i = 1; i <= 300; ++i) objects.push_back({i, kSizes[i % (kSizes.size() - 2)]});
  const auto places = append_all(*log_, objects);
  ASSERT_EQ(places.size(), objects.size());
  std::vector<LogRead> reads;
  std::vector<std::vector<std::byte>> memory;
  for (const Object& object : objects) memory.emplace_back(object.size);
  for (std::size_t i = 0; i < objects.size(); ++i) {
    ASSERT_TRUE(places[i].ok()) << places[i].status().to_string();
    reads.push_back({*places[i], objects[i].id(), 0, memory[i]});
  }
  const auto statuses = log_->read_batch(reads, soon());
  for (std::size_t i = 0; i < objects.size(); ++i) {
    EXPECT_OK(statuses[i]);
    EXPECT_EQ(memory[i], objects[i].bytes()) << i;
  }
}

TEST_F(LogTest, ABadRecordInABatchDoesNotTouchTheOthers) {
  open();
  const Appended good({1, 100}), other({3, 100}), short_of({2, 100});
  LogWrite bad = short_of.write();
  bad.record.bytes = 101;
  LogWrite long_key = short_of.write();
  const std::string key(store::kMaxKeyBytes + 1, 'k');
  long_key.record.key = key;
  const std::vector<LogWrite> writes{good.write(), bad, long_key, other.write()};
  const auto results = log_->append_batch(writes, soon());
  EXPECT_TRUE(results[0].ok());
  EXPECT_EQ(results[1].status().code(), Code::kInvalidArgument);
  EXPECT_EQ(results[2].status().code(), Code::kInvalidArgument);
  ASSERT_TRUE(results[3].ok());
  EXPECT_OK(check(*log_, {3, 100}, *results[3]));
}

TEST_F(LogTest, PacksSmallRecordsTogether) {
  open();
  std::vector<Object> objects;
  for (std::uint64_t i = 1; i <= 1000; ++i) objects.push_back({i, 100});
  const std::uint64_t before = log_->usage().written_bytes;
  for (const auto& place : append_all(*log_, objects)) ASSERT_TRUE(place.ok());
  EXPECT_LT(log_->usage().written_bytes - before, 300u * 1000);  // one by one they would be 4096 each
}

TEST_F(LogTest, ReadsRangesIntoAlignedAndUnalignedMemory) {
  open();
  const Object object{1, 700001};
  const LogPlace place = must_append(object);
  const auto bytes = object.bytes();
  std::vector<std::byte> memory(object.size + 8192);
  auto* const aligned = memory.data() + (4096 - reinterpret_cast<std::uintptr_t>(memory.data()) % 4096);
  for (const std::uint64_t offset : {0ul, 1ul, 4096ul, 65535ul, 65536ul, 131072ul, 699999ul, 700001ul}) {
    for (const std::uint64_t length : {0ul, 1ul, 4096ul, 65536ul, 65537ul, 262144ul, 500000ul}) {
      for (const std::uint64_t shift : {0ul, 1ul, 512ul}) {
        const std::span target(aligned + shift, length);
        const Status status = log_->read(place, object.id(), offset, target, soon());
        if (offset + length > object.size) {
          EXPECT_EQ(status.code(), Code::kOutOfRange);
          continue;
        }
        ASSERT_OK(status);
        ASSERT_TRUE(std::equal(target.begin(), target.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset)))
            << offset << " " << length << " " << shift;
      }
    }
  }
  EXPECT_EQ(log_->read(place, object.id(), UINT64_MAX, std::span(aligned, 2), soon()).code(), Code::kOutOfRange);
}

TEST_F(LogTest, StoresAnObjectOfManyPieces) {
  open();
  const Object object{1, 900000};
  const auto bytes = object.bytes();
  for (const std::size_t step : {1000ul, 4096ul, 100000ul, 131072ul}) {
    std::vector<std::span<const std::byte>> pieces;
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      pieces.push_back(std::span(bytes).subspan(at, std::min(step, bytes.size() - at)));
      pieces.push_back({});
    }
    const std::string attributes = object.attributes(), key = object.key();
    const LogRecord record{object.id(), key, object.size, object.digest(), attributes};
    const auto place = log_->append(record, pieces, soon());
    ASSERT_TRUE(place.ok()) << place.status().to_string();
    EXPECT_OK(check(*log_, object, *place));
  }
}

TEST_F(LogTest, WhatIsErasedStaysErased) {
  open();
  std::vector<LogPlace> places;
  for (std::uint64_t i = 0; i < 40; ++i) places.push_back(must_append({i, 1000 * i}));
  std::vector<LogErase> erases;
  for (std::uint64_t i = 0; i < 40; i += 2) erases.push_back({Object{i, 0}.id(), places[i]});
  for (const Status& status : log_->erase_batch(erases, soon())) EXPECT_OK(status);
  EXPECT_EQ(check(*log_, {4, 4000}, places[4]).code(), Code::kStale);
  EXPECT_EQ(log_->erase(Object{4, 0}.id(), places[4], soon()).code(), Code::kStale);
  EXPECT_OK(check(*log_, {5, 5000}, places[5]));
  RecoveredObjects copied;
  ASSERT_NE(open_copy(&copied), nullptr);  // without a clean end
  reopen();
  for (const auto* found : {&copied.found, &recovered_.found}) {
    ASSERT_EQ(found->size(), 20u);
    for (const auto& [number, object] : *found) EXPECT_EQ(number % 2, 1u);
  }
}

TEST_F(LogTest, APlaceIsGoodForItsObjectOnly) {
  open();
  const LogPlace place = must_append({1, 10});
  EXPECT_EQ(check(*log_, {2, 10}, place).code(), Code::kStale);
  EXPECT_EQ(log_->erase(Object{2, 10}.id(), place, soon()).code(), Code::kStale);
  EXPECT_EQ(check(*log_, {1, 10}, {place.segment, 99, 10}).code(), Code::kStale);
  EXPECT_EQ(check(*log_, {1, 10}, {99, place.record, 10}).code(), Code::kStale);
}

TEST_F(LogTest, OfTwoRecordsOfOneObjectTheLaterOneCounts) {
  open();
  for (std::uint64_t size = 1; size <= 5; ++size) must_append({1, size});
  must_append({2, (1 << 20) + 1});  // in a segment of its own
  must_append({1, 6});
  reopen();
  EXPECT_EQ(recovered_.found.at(1).object.size, 6u);
  EXPECT_EQ(recovered_.found.size(), 2u);
  ASSERT_OK(log_->erase(Object{1, 6}.id(), recovered_.found.at(1).place, soon()));
  reopen();
  EXPECT_EQ(recovered_.found.count(1), 0u);  // no earlier one comes back
}

TEST_F(LogTest, UsageIsWhatTheFilesTakeOnDisk) {
  open();
  std::vector<LogPlace> places;
  for (std::uint64_t i = 0; i < 60; ++i) {
    places.push_back(must_append({i, 100000}));
    ASSERT_TRUE(usage_is_exact(*log_, folder_.file("log"))) << i;
  }
  for (std::uint64_t i = 0; i < 30; ++i) {
    ASSERT_OK(log_->erase(Object{i, 0}.id(), places[i], soon()));
    ASSERT_TRUE(usage_is_exact(*log_, folder_.file("log"))) << i;
  }
  reopen();
  EXPECT_TRUE(usage_is_exact(*log_, folder_.file("log")));
  EXPECT_EQ(log_->usage().live_bytes, 30u * 100000);
}

TEST_F(LogTest, AFullLogSaysSoAndTakesMoreOnceSomethingIsErased) {
  open();
  std::map<std::uint64_t, LogPlace> places;
  Status full;
  for (std::uint64_t i = 0; full.ok(); ++i) {
    ASSERT_LT(i, 1000u);
    const auto place = append(*log_, {i, 100000});
    full = place.status();
    if (place.ok()) places[i] = *place;
    ASSERT_LE(log_->usage().disk_bytes, options().capacity);
  }
  EXPECT_EQ(full.code(), Code::kResourceExhausted) << full.to_string();
  EXPECT_NE(full.message().find(folder_.file("log")), std::string::npos) << full.message();
  EXPECT_GT(places.size() * 100000, options().capacity * 7 / 10);
  for (const auto& [number, place] : places) ASSERT_OK(check(*log_, {number, 100000}, place));
  for (int round = 0; round < 10; ++round) {
    const auto victims = log_->cheapest_to_erase();
    ASSERT_FALSE(victims.empty());
    for (const Status& status : log_->erase_batch(victims, soon())) ASSERT_OK(status);
    for (const LogErase& victim : victims) places.erase(victim.id.lo);
    const std::uint64_t number = 2000 + static_cast<std::uint64_t>(round);
    places[number] = must_append({number, 100000});
    ASSERT_LE(blocks_in(folder_.file("log")), options().capacity);
  }
  for (const auto& [number, place] : places) ASSERT_OK(check(*log_, {number, 100000}, place));
}

TEST_F(LogTest, ASmallerLimitHoldsFromTheFirstAppendAfterARestart) {
  open();
  for (std::uint64_t i = 0; i < 60; ++i) must_append({i, 100000});
  log_.reset();
  LogOptions smaller = options();
  smaller.capacity = 4 * kSegment;
  open(smaller);
  EXPECT_EQ(recovered_.found.size(), 60u);
  const std::uint64_t before = blocks_in(folder_.file("log"));
  EXPECT_EQ(append(*log_, {100, 100000}).status().code(), Code::kResourceExhausted);
  EXPECT_LE(blocks_in(folder_.file("log")), before);
  while (log_->usage().disk_bytes - log_->usage().spare_bytes > kSegment) {
    for (const Status& status : log_->erase_batch(log_->cheapest_to_erase(), soon())) ASSERT_OK(status);
  }
  must_append({100, 100000});
}

TEST_F(LogTest, ObjectsThatCannotFitAreRefused) {
  open();
  const std::uint64_t largest = log_->usage().largest_object;
  EXPECT_EQ(append(*log_, {1, largest + 1}).status().code(), Code::kResourceExhausted);
  const LogPlace place = must_append({2, largest});
  EXPECT_OK(check(*log_, {2, largest}, place));
}

// A caller's table of where its objects are.
class Table {
 public:
  bool move(std::uint64_t number, const LogPlace& from, const LogPlace& to) {
    const std::lock_guard lock(mutex_);
    const auto known = places_.find(number);
    if (known == places_.end() || !(known->second == from)) return false;
    known->second = to;
    return true;
  }
  void set(std::uint64_t number, const LogPlace& place) {
    const std::lock_guard lock(mutex_);
    places_[number] = place;
  }
  std::map<std::uint64_t, LogPlace> all() const {
    const std::lock_guard lock(mutex_);
    return places_;
  }
  void erase(Log& log, std::uint64_t number) {
    for (Status status(Code::kStale, ""); status.code() == Code::kStale;) {  // it may be moving
      status = log.erase(Object{number, 0}.id(), all().at(number), soon());
      EXPECT_TRUE(status.ok() || status.code() == Code::kStale) << status.to_string();
    }
    const std::lock_guard lock(mutex_);
    places_.erase(number);
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, LogPlace> places_;
};

TEST_F(LogTest, CompactionKeepsEveryByteAndEraseMeanwhileIsFinal) {
  Table table;
  LogOptions moving = options();
  moving.moved = [&](const ObjectId& id, const LogPlace& from, const LogPlace& to) {
    return table.move(id.lo, from, to);
  };
  open(moving);
  std::uint64_t fills = 0;
  for (std::uint64_t number = 0; number < 400; ++number) {
    const Object object{number, 30000 + number * 37 % 9000};
    auto place = append(*log_, object);
    while (!place.ok()) {  // full: every third goes, so that no segment dies as a whole
      ASSERT_EQ(place.status().code(), Code::kResourceExhausted) << place.status().to_string();
      ++fills;
      for (const auto& [victim, where] : table.all()) {
        if (victim % 3 == fills % 3) table.erase(*log_, victim);
      }
      place = append(*log_, object);
    }
    table.set(number, *place);
  }
  EXPECT_GT(log_->usage().compacted_bytes, 0u);
  EXPECT_OK(log_->trouble());
  ASSERT_LE(blocks_in(folder_.file("log")), options().capacity);
  log_.reset();
  LogOptions still = options();
  still.compact_below = 0;
  open(still);
  ASSERT_EQ(recovered_.found.size(), table.all().size());
  for (const auto& [number, there] : recovered_.found) {
    EXPECT_EQ(table.all().count(number), 1u) << number;
    ASSERT_OK(check(*log_, there.object, there.place));
  }
}

TEST_F(LogTest, ThreadsMayAppendReadAndEraseAtOnce) {
  open();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 60; ++i) {
        const Object object{t * 1000 + i, 1000 + i * 500};
        const auto place = append(*log_, object);
        wrong += !place.ok() || !check(*log_, object, *place).ok();
        if (i % 2 == 0) wrong += !log_->erase(object.id(), *place, soon()).ok();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  reopen();
  EXPECT_EQ(recovered_.found.size(), 120u);
}

TEST_F(LogTest, NobodyElseMayUseTheDirectory) {
  open();
  const auto second = Log::open(options(), [](const LogRecord&, const LogPlace&) {});
  ASSERT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_NE(second.status().message().find("process " + std::to_string(::getpid())), std::string::npos)
      << second.status().message();
  reopen();
}

TEST_F(LogTest, RefusesOptionsThatMakeNoSense) {
  const auto code = [](LogOptions options) {
    return Log::open(std::move(options), [](const LogRecord&, const LogPlace&) {}).status().code();
  };
  LogOptions none = options();
  none.directory = "";
  EXPECT_EQ(code(none), Code::kInvalidArgument);
  LogOptions small = options();
  small.capacity = 3 * kSegment;
  EXPECT_EQ(code(small), Code::kInvalidArgument);
  LogOptions tiny = options();
  tiny.segment_bytes = 4096;
  EXPECT_EQ(code(tiny), Code::kInvalidArgument);
  LogOptions file = options();
  file.directory = folder_.file("file");
  std::ofstream(file.directory) << "a file";
  EXPECT_NE(code(file), Code::kOk);
}

TEST_F(LogTest, MakesTheDirectoryAndSaysHowItReadsAndWrites) {
  LogOptions deep = options();
  deep.directory = folder_.file("a/b");
  const auto nowhere = Log::open(deep, [](const LogRecord&, const LogPlace&) {});
  EXPECT_EQ(nowhere.status().code(), Code::kNotFound) << nowhere.status().to_string();
  EXPECT_NE(nowhere.status().message().find(deep.directory + ": cannot be made, for the directory that it should"),
            std::string::npos)
      << nowhere.status().message();
  EXPECT_FALSE(std::filesystem::exists(folder_.file("a")));
  std::filesystem::create_directory(folder_.file("a"));
  open(deep);
  EXPECT_NE(log_->note().find("; by "), std::string::npos) << log_->note();
  log_.reset();
  deep.direct = false;
  deep.io_uring = false;
  open(deep);
  EXPECT_NE(log_->note().find("buffered: as asked for; by pread"), std::string::npos) << log_->note();
  const LogPlace place = must_append({1, 300001});
  EXPECT_OK(check(*log_, {1, 300001}, place));
}

TEST_F(LogTest, WorksInMemoryFileSystemsThroughThePageCache) {
  const std::string directory = "/dev/shm/kvferry-log-test-" + std::to_string(::getpid());
  LogOptions memory = options();
  memory.directory = directory;
  const auto log = Log::open(memory, [](const LogRecord&, const LogPlace&) {});
  if (log.ok() && (*log)->note().find("tmpfs") != std::string::npos) {
    EXPECT_NE((*log)->note().find("buffered: tmpfs keeps files in memory"), std::string::npos);
    const auto place = append(**log, {1, 300001});
    EXPECT_TRUE(place.ok());
    EXPECT_OK(check(**log, {1, 300001}, *place));
    EXPECT_TRUE(usage_is_exact(**log, directory));
  }
  std::filesystem::remove_all(directory);
  if (!log.ok() || (*log)->note().find("tmpfs") == std::string::npos) GTEST_SKIP() << "/dev/shm is no tmpfs here";
}

TEST_F(LogTest, LeavesForeignFilesAlone) {
  open();
  must_append({1, 1000});
  log_.reset();
  const std::string readme = folder_.file("log/README"), stranger = folder_.file("log/segment-00000002.kvf");
  std::ofstream(readme) << "mine";
  std::ofstream(stranger) << std::string(10000, 'x');
  std::filesystem::create_directory(folder_.file("log/segment-ffffffff.kvf"));
  open();
  EXPECT_EQ(recovered_.found.size(), 1u);
  const LogPlace place = must_append({2, 1000});
  EXPECT_EQ(place.segment, 3u);  // nobody's name is taken
  log_.reset();
  EXPECT_TRUE(std::filesystem::exists(readme));
  EXPECT_EQ(std::filesystem::file_size(stranger), 10000u);
}

TEST_F(LogTest, ManyRestartsDoNotFillTheDisk) {
  for (int round = 0; round < 20; ++round) {
    open();
    const LogPlace place = must_append({1, 100});
    ASSERT_OK(log_->erase(Object{1, 100}.id(), place, soon()));
    log_.reset();
  }
  open();
  EXPECT_LE(log_->usage().disk_bytes, 8192u);  // the lock
}

TEST_F(LogTest, CallsAfterCloseFail) {
  open();
  const LogPlace place = must_append({1, 100});
  log_->close();
  log_->close();
  EXPECT_EQ(append(*log_, {2, 100}).status().code(), Code::kUnavailable);
  EXPECT_EQ(check(*log_, {1, 100}, place).code(), Code::kUnavailable);
  EXPECT_EQ(log_->erase(Object{1, 100}.id(), place, soon()).code(), Code::kUnavailable);
}

TEST_F(LogTest, SyncModesStoreTheSame) {
  for (const auto sync : {store::SsdSync::kNone, store::SsdSync::kEverySegment, store::SsdSync::kEveryCommit}) {
    LogOptions synced = options();
    synced.sync = sync;
    synced.directory = folder_.file("sync" + std::to_string(static_cast<int>(sync)));
    open(synced);
    std::map<std::uint64_t, LogPlace> places;
    for (std::uint64_t i = 0; i < 5; ++i) places[i] = must_append({i, 400000});
    ASSERT_OK(log_->erase(Object{2, 0}.id(), places[2], soon()));
    log_.reset();
    open(synced);
    EXPECT_EQ(recovered_.found.size(), 4u);
  }
}

}  // namespace
}  // namespace kvferry::testing
