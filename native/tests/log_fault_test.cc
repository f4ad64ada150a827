// The store's log on disks that fail, and over files that somebody tampered with.
#include <gtest/gtest.h>

#include <cerrno>
#include <sstream>
#include <thread>

#include "base/crc32c.h"
#include "log_fixture.h"
#include "log_lines.h"
#include "store/log/format.h"

namespace kvferry::testing {
namespace {

using Kind = IoRequest::Kind;

class LogFaultTest : public LogTest {
 protected:
  LogFaultTest() { disk_ = std::make_shared<FaultyDisk>(); }

  void fail_all(Kind kind, int error) {
    disk_->fail_requests(
        [=](IoRequest* request) { return request->kind == kind ? std::optional<std::int64_t>(-error) : std::nullopt; });
  }
  static void overwrite(const std::string& path, std::uint64_t offset, const std::string& bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file << bytes;
  }
  static std::string content(const std::string& path) {
    std::ostringstream out;
    out << std::ifstream(path, std::ios::binary).rdbuf();
    return out.str();
  }
};

TEST_F(LogFaultTest, ADiskThatFailsToReadIsSaidSo) {
  open();
  const LogPlace place = must_append({1, 100000});
  fail_all(Kind::kRead, EIO);
  const Status status = check(*log_, {1, 100000}, place);
  EXPECT_EQ(status.code(), Code::kUnavailable) << status.to_string();
  EXPECT_NE(status.message().find("segment-"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("errno 5"), std::string::npos) << status.message();
  disk_->heal();
  EXPECT_OK(check(*log_, {1, 100000}, place));
}

TEST_F(LogFaultTest, ShortReadsAndWritesGoOn) {
  open();
  disk_->fail_requests([](IoRequest* request) -> std::optional<std::int64_t> {
    if (request->length > 4096) request->length = request->length / 2 / 4096 * 4096;
    return std::nullopt;
  });
  const LogPlace place = must_append({1, 1000001});
  EXPECT_OK(check(*log_, {1, 1000001}, place));
}

TEST_F(LogFaultTest, AReadThatEndsEarlyIsAnAbsentObject) {
  open();
  const LogPlace place = must_append({1, 100000});
  disk_->fail_requests(
      [](IoRequest* request) { return request->kind == Kind::kRead ? std::optional<std::int64_t>(0) : std::nullopt; });
  EXPECT_EQ(check(*log_, {1, 100000}, place).code(), Code::kDataCorrupt);
}

TEST_F(LogFaultTest, AFailedAppendLeavesNothingBehind) {
  open();
  const LogPlace before = must_append({1, 100000});
  disk_->fail_requests([](IoRequest* request) {  // the payload does not land, the head does
    const bool payload = request->kind == Kind::kWrite && request->length > 65536;
    return payload ? std::optional<std::int64_t>(-EIO) : std::nullopt;
  });
  const Status status = append(*log_, {2, 400000}).status();
  EXPECT_EQ(status.code(), Code::kUnavailable) << status.to_string();
  disk_->heal();
  const LogPlace after = must_append({3, 100000});
  EXPECT_OK(check(*log_, {1, 100000}, before));
  EXPECT_OK(check(*log_, {3, 100000}, after));
  RecoveredObjects copied;
  const auto copy = open_copy(&copied);
  reopen();
  for (const auto* found : {&copied.found, &recovered_.found}) {
    EXPECT_EQ(found->size(), 2u);
    EXPECT_EQ(found->count(2), 0u);
  }
}

TEST_F(LogFaultTest, GoesOnWhenTheFileSystemHasSpaceAgain) {
  open();
  disk_->fail_files([](const std::string& what, const std::string& path) {
    return what == "create" ? errno_status(Code::kResourceExhausted, path, ENOSPC) : Status();
  });
  const Status status = append(*log_, {1, 1000}).status();
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.to_string();
  EXPECT_NE(status.message().find(folder_.file("log")), std::string::npos) << status.message();
  disk_->heal();
  const LogPlace place = must_append({1, 1000});
  EXPECT_OK(check(*log_, {1, 1000}, place));
}

TEST_F(LogFaultTest, ErasesOnAFullFileSystem) {
  open();
  const LogPlace first = must_append({1, 1000}), second = must_append({2, 1000});
  disk_->fail_files(
      [](const std::string&, const std::string& path) { return errno_status(Code::kResourceExhausted, path, ENOSPC); });
  ASSERT_OK(log_->erase(Object{1, 0}.id(), first, soon()));
  EXPECT_OK(check(*log_, {2, 1000}, second));
  RecoveredObjects copied;
  disk_->heal();
  EXPECT_NE(open_copy(&copied), nullptr);
  EXPECT_EQ(copied.found.size(), 1u);
}

TEST_F(LogFaultTest, AnEraseThatCannotBeNotedDownSaysSo) {
  open();
  const LogPlace place = must_append({1, 1000});
  must_append({2, 1000});
  fail_all(Kind::kWrite, EIO);
  EXPECT_EQ(log_->erase(Object{1, 0}.id(), place, soon()).code(), Code::kUnavailable);
  EXPECT_EQ(check(*log_, {1, 1000}, place).code(), Code::kStale);
  disk_->heal();
}

TEST_F(LogFaultTest, AFooterThatCannotBeWrittenCostsNothing) {
  open();
  disk_->fail_requests([](IoRequest* request) -> std::optional<std::int64_t> {
    const bool footer = request->kind == Kind::kWrite && request->length == 4096 && request->offset > 500000;
    return footer ? std::optional<std::int64_t>(-EIO) : std::nullopt;
  });
  for (std::uint64_t i = 0; i < 8; ++i) must_append({i, 65536});
  log_.reset();
  disk_->heal();
  open();
  EXPECT_EQ(recovered_.found.size(), 8u);
  for (const auto& [number, found] : recovered_.found) EXPECT_OK(check(*log_, found.object, found.place));
}

TEST_F(LogFaultTest, ADeadlineEndsAnAppendAndNothingOfItIsFoundLater) {
  open();
  must_append({1, 1000});
  const Status status = append(*log_, {2, 300000}, Deadline::min()).status();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.to_string();
  EXPECT_EQ(log_->usage().live_records, 1u);
  must_append({3, 1000});
  reopen();
  EXPECT_EQ(recovered_.found.size(), 2u);
}

TEST_F(LogFaultTest, AProbeThatFailsNamesTheDirectory) {
  fail_all(Kind::kWrite, EIO);
  const auto opened = Log::open(options(), [](const LogRecord&, const LogPlace&) {});
  EXPECT_EQ(opened.status().code(), Code::kUnavailable);
  EXPECT_NE(opened.status().message().find(folder_.file("log") + " cannot be used"), std::string::npos);
  disk_->heal();
  disk_->fail_files([](const std::string& what, const std::string& path) {
    return what == "create" ? errno_status(Code::kPermissionDenied, path, EROFS) : Status();
  });
  const auto read_only = Log::open(options(), [](const LogRecord&, const LogPlace&) {});
  EXPECT_EQ(read_only.status().code(), Code::kPermissionDenied) << read_only.status().to_string();
  disk_->heal();
  disk_->fail_requests([](IoRequest* request) -> std::optional<std::int64_t> {  // reads something else
    if (request->kind != Kind::kRead) return std::nullopt;
    std::fill_n(request->data, request->length, std::byte{1});
    return request->length;
  });
  const auto liar = Log::open(options(), [](const LogRecord&, const LogPlace&) {});
  EXPECT_EQ(liar.status().code(), Code::kUnavailable) << liar.status().to_string();
}

TEST_F(LogFaultTest, FallsBackToThePageCacheWhenDirectAccessIsRefusedAfterAll) {
  disk_->fail_requests([asked = 0](IoRequest*) mutable -> std::optional<std::int64_t> {
    return ++asked == 1 ? std::optional<std::int64_t>(-EINVAL) : std::nullopt;
  });
  open();
  EXPECT_NE(log_->note().find("buffered: a direct request was refused"), std::string::npos) << log_->note();
  const LogPlace place = must_append({1, 100001});
  EXPECT_OK(check(*log_, {1, 100001}, place));
}

TEST_F(LogFaultTest, FlippedBitsAreNeverReturned) {
  open();
  const Object object{1, 300000};
  const LogPlace place = must_append(object);
  const std::string path = segment_files(folder_.file("log")).front();
  const std::string before = content(path);
  const auto bytes = object.bytes();
  const std::string payload(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t begin = before.find(payload.substr(0, 64));
  ASSERT_NE(begin, std::string::npos);
  const Warnings warnings;
  for (const std::size_t at : {0ul, 65535ul, 65536ul, 150000ul, 299999ul}) {
    overwrite(path, begin + at, std::string(1, static_cast<char>(before[begin + at] ^ 4)));
    EXPECT_EQ(check(*log_, object, place).code(), Code::kDataCorrupt) << at;
    std::vector<std::byte> other(1000);  // another chunk is still right
    const std::uint64_t elsewhere = at < 150000 ? 200000 : 0;
    EXPECT_OK(log_->read(place, object.id(), elsewhere, other, soon()));
    overwrite(path, begin + at, before.substr(begin + at, 1));
  }
  EXPECT_OK(check(*log_, object, place));
  EXPECT_EQ(log_->usage().corrupt_reads, 5u);
  const std::vector<std::string> lines = warnings.lines();
  ASSERT_GE(lines.size(), 1u);
  EXPECT_LT(lines.size(), 5u) << "they come seldom";
  for (const std::string& word :
       {std::string("ssd_corrupt"), path, "at offset " + std::to_string(begin), std::string("the object is dropped")}) {
    EXPECT_NE(lines.front().find(word), std::string::npos) << word << " is missing in " << lines.front();
  }
}

TEST_F(LogFaultTest, DeletedAndTruncatedFilesTakeOnlyTheirOwnObjects) {
  open();
  for (std::uint64_t i = 0; i < 40; ++i) must_append({i, 100000});
  log_.reset();
  const auto files = segment_files(folder_.file("log"));
  ASSERT_GE(files.size(), 4u);
  std::filesystem::remove(files[0]);
  std::filesystem::resize_file(files[1], std::filesystem::file_size(files[1]) / 2 + 100);
  std::filesystem::resize_file(files[2], 100);
  open();
  EXPECT_LT(recovered_.found.size(), 30u);
  EXPECT_GT(recovered_.found.size(), 10u);
  for (const auto& [number, found] : recovered_.found) EXPECT_OK(check(*log_, found.object, found.place));
  EXPECT_TRUE(usage_is_exact(*log_, folder_.file("log")));
}

TEST_F(LogFaultTest, FilesThatAreDeletedOrTruncatedInUse) {
  open();
  const LogPlace place = must_append({1, 100000});
  const std::string path = segment_files(folder_.file("log")).front();
  std::filesystem::resize_file(path, 65536);
  EXPECT_EQ(check(*log_, {1, 100000}, place).code(), Code::kDataCorrupt);
  std::filesystem::remove(path);
  EXPECT_EQ(check(*log_, {1, 100000}, place).code(), Code::kDataCorrupt);
  log_.reset();
  open();
  EXPECT_EQ(recovered_.found.size(), 0u);
}

TEST_F(LogFaultTest, ADamagedIndexIsPassedOverAndAFileOfTheFutureRefused) {
  open();
  for (std::uint64_t i = 0; i < 20; ++i) must_append({i, 100000});
  log_.reset();
  const auto files = segment_files(folder_.file("log"));
  overwrite(files[0], std::filesystem::file_size(files[0]) - 4096, "damage");  // in the footer: the heads are read
  open();
  EXPECT_EQ(recovered_.found.size(), 20u);
  log_.reset();
  overwrite(files[1], 40, "damage");  // in the header
  open();
  EXPECT_LT(recovered_.found.size(), 20u);
  EXPECT_GT(recovered_.found.size(), 5u);
  log_.reset();
  Bytes header = store::log::SegmentHeader{1, 2, 1 << 20, 4096}.encode();
  header[8] = std::byte{9};
  ByteWriter sealed;
  sealed.raw(ByteView(header).first(60));
  sealed.u32(crc32c(ByteView(header).first(60)));
  const Bytes future = sealed.take();
  overwrite(segment_files(folder_.file("log")).front(), 0,
            std::string(reinterpret_cast<const char*>(future.data()), future.size()));
  const auto opened = Log::open(options(), [](const LogRecord&, const LogPlace&) {});
  EXPECT_EQ(opened.status().code(), Code::kUnsupported) << opened.status().to_string();
}

TEST_F(LogFaultTest, ATornTailIsDroppedAtWhateverByteItIsTorn) {
  LogOptions small = options();
  small.segment_bytes = 128 << 10;
  open(small);
  const std::vector<Object> kept{{1, 100}, {2, 5000}, {3, 20000}};
  for (const Object& object : kept) must_append(object);
  const std::string path = segment_files(folder_.file("log")).front();
  const std::string before = content(path);
  must_append({4, 50});
  const std::string after = content(path);
  const std::size_t begin =
      static_cast<std::size_t>(std::mismatch(before.begin(), before.end(), after.begin()).first - before.begin());
  std::size_t end = after.size();
  while (end > begin && after[end - 1] == 0) --end;
  ASSERT_LT(end - begin, 4096u);
  for (std::size_t torn = begin; torn < end; ++torn) {
    overwrite(path, begin, after.substr(begin, torn - begin) + std::string(end - torn, '\0'));
    RecoveredObjects copied;
    const auto copy = open_copy(&copied);
    ASSERT_NE(copy, nullptr);
    ASSERT_EQ(copied.found.size(), kept.size()) << "torn at " << torn - begin << " of " << end - begin;
    if ((torn - begin) % 16 != 0) continue;
    for (const auto& [number, found] : copied.found) ASSERT_OK(check(*copy, found.object, found.place));
    ASSERT_TRUE(usage_is_exact(*copy, folder_.file("copy")));
  }
  overwrite(path, begin, after.substr(begin, end - begin));
  RecoveredObjects copied;
  ASSERT_NE(open_copy(&copied), nullptr);
  EXPECT_EQ(copied.found.size(), kept.size() + 1);
}

TEST_F(LogFaultTest, AHoleInTheOpenSegmentHidesNothingBehindIt) {
  open();
  for (std::uint64_t i = 0; i < 6; ++i) must_append({i, 50000});
  const std::string path = segment_files(folder_.file("log")).front();
  const std::string now = content(path);
  const std::size_t head = now.find("KVFGRP1", now.find("KVFGRP1") + 1);
  ASSERT_NE(head, std::string::npos);
  overwrite(path, head, std::string(4096, '\0'));
  RecoveredObjects copied;
  const auto copy = open_copy(&copied);
  EXPECT_EQ(copied.found.size(), 5u);
}

TEST_F(LogFaultTest, CompactionThatFailsLosesNothing) {
  LogOptions small = options();
  small.capacity = 6 * kSegment;
  std::mutex mutex;
  std::map<std::uint64_t, LogPlace> table;
  small.moved = [&](const ObjectId& id, const LogPlace& from, const LogPlace& to) {
    const std::lock_guard lock(mutex);
    if (table.count(id.lo) == 0 || !(table[id.lo] == from)) return false;
    table[id.lo] = to;
    return true;
  };
  open(small);
  for (std::uint64_t i = 0; i < 36; ++i) {
    const LogPlace place = must_append({i, 100000});
    const std::lock_guard lock(mutex);
    table[i] = place;
  }
  disk_->fail_requests([failed = 0](IoRequest* request) mutable -> std::optional<std::int64_t> {
    const bool fails = request->kind == Kind::kWrite && request->length > 65536 && failed++ < 1;
    return fails ? std::optional<std::int64_t>(-EIO) : std::nullopt;
  });
  std::vector<LogErase> erases;
  for (std::uint64_t i = 0; i < 36; i += 2) erases.push_back({Object{i, 0}.id(), table.at(i)});
  (void)log_->erase_batch(erases, soon());
  const Deadline patience = soon();
  while (log_->trouble().ok() && !expired(patience)) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(log_->trouble().code(), Code::kUnavailable);
  disk_->heal();
  {
    const std::lock_guard lock(mutex);
    for (std::uint64_t i = 1; i < 36; i += 2) EXPECT_OK(check(*log_, {i, 100000}, table.at(i)));
  }
  log_.reset();
  RecoveredObjects again;
  small.compact_below = 0;
  auto log = Log::open(small, again.callback());
  ASSERT_TRUE(log.ok());
  for (const auto& [number, found] : again.found) EXPECT_OK(check(**log, found.object, found.place));
  for (std::uint64_t i = 1; i < 36; i += 2) EXPECT_EQ(again.found.count(i), 1u) << i;
}

}  // namespace
}  // namespace kvferry::testing
