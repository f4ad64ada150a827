// The file rail over a queue that fails on purpose.
#include "transport/file/file_rail.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <functional>

#include "base/deadline.h"
#include "engine_fixture.h"
#include "faulty_queue.h"
#include "mapped_files.h"

namespace kvferry::testing {
namespace {

class FileRailTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kLength = 1u << 20;

  void open(FileSync sync, FaultyQueue::Fault fault) {
    FileOptions options;
    options.length = kLength;
    options.create = true;
    options.access = kRemoteRead | kRemoteWrite;
    options.sync = sync;
    auto file = OpenFile::open(folder_.file("data"), options);
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    file_ = *file;
    auto region = regions_.add({nullptr, kLength, "data", options.access, MemoryKind::kFile, 0, 0});
    ASSERT_TRUE(region.ok());
    key_ = region->key;
    files_.add(key_, file_);
    memory_.resize(kLength + 4096);
    aligned_ = memory_.data() + (4096 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 4096) % 4096;
    fill({aligned_, kLength}, 1);
    queue_ = std::make_shared<FaultyQueue>(std::move(fault));
    rail_ = std::make_unique<FileRail>(queue_, regions_, files_);
  }

  Status execute(Op op, const std::vector<RunOp>& runs, milliseconds timeout = kPatience) {
    results_.assign(runs.size(), Status());
    return rail_->execute({op, runs, 0}, results_, deadline_in(timeout), cancelled_);
  }
  RunOp run(std::uint64_t offset, std::uint64_t length) { return {aligned_ + offset, key_, offset, length}; }
  bool direct() const { return file_->geometry().direct; }

  TemporaryFolder folder_;
  RegionTable regions_{nullptr, false};
  FileTable files_;
  std::shared_ptr<OpenFile> file_;
  RegionKey key_;
  std::vector<std::byte> memory_;
  std::byte* aligned_ = nullptr;
  std::shared_ptr<FaultyQueue> queue_;
  std::unique_ptr<FileRail> rail_;
  std::vector<Status> results_;
  std::atomic<bool> cancelled_{false};
};

TEST_F(FileRailTest, NamesPathOffsetAndErrorOfEachRunThatFailed) {
  open(FileSync::kNone, [](IoRequest* request) -> std::optional<std::int64_t> {
    if (request->offset == 65536) return -ENOSPC;
    if (request->offset == 131072) return -EIO;
    return std::nullopt;
  });
  ASSERT_OK(execute(Op::kWrite, {run(0, 4096), run(65536, 4096), run(131072, 4096), run(262144, 4096)}));
  EXPECT_OK(results_[0]);
  EXPECT_EQ(results_[1].code(), Code::kResourceExhausted);
  EXPECT_NE(results_[1].message().find(folder_.file("data")), std::string::npos) << results_[1].message();
  EXPECT_NE(results_[1].message().find("offset 65536"), std::string::npos) << results_[1].message();
  EXPECT_NE(results_[1].message().find("errno 28"), std::string::npos) << results_[1].message();
  EXPECT_EQ(results_[2].code(), Code::kUnavailable);
  EXPECT_OK(results_[3]);
}

TEST_F(FileRailTest, GoesOnAfterShortReadsAndWrites) {
  open(FileSync::kNone, [](IoRequest* request) -> std::optional<std::int64_t> {
    if (request->length > 4096) request->length = 4096;
    return std::nullopt;
  });
  ASSERT_OK(execute(Op::kWrite, {run(0, 300000)}));
  EXPECT_OK(results_[0]);
  fill({aligned_, kLength}, 2);
  ASSERT_OK(execute(Op::kRead, {run(0, 300000)}));
  EXPECT_OK(results_[0]);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < 300000; ++i) wrong += aligned_[i] != pattern(1, i);
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(aligned_[300000], pattern(2, 300000));
}

TEST_F(FileRailTest, TellsAWriteThatMovesNothing) {
  open(FileSync::kNone, [](IoRequest*) { return std::optional<std::int64_t>(0); });
  ASSERT_OK(execute(Op::kWrite, {run(0, 4096)}));
  EXPECT_EQ(results_[0].code(), Code::kUnavailable) << results_[0].to_string();
}

TEST_F(FileRailTest, TriesInterruptedRequestsAgain) {
  int times = 0;
  open(FileSync::kNone, [&](IoRequest*) -> std::optional<std::int64_t> {
    return ++times <= 2 ? std::optional<std::int64_t>(-EINTR) : std::nullopt;
  });
  ASSERT_OK(execute(Op::kWrite, {run(0, 4096)}));
  EXPECT_OK(results_[0]);
  EXPECT_EQ(queue_->started, 3);
}

TEST_F(FileRailTest, FallsBackToThePageCacheWhenADirectRequestIsRefused) {
  open(FileSync::kNone, [this](IoRequest* request) -> std::optional<std::int64_t> {
    return request->fd == file_->direct_fd() ? std::optional<std::int64_t>(-EINVAL) : std::nullopt;
  });
  if (!direct()) GTEST_SKIP() << file_->note();
  ASSERT_OK(execute(Op::kWrite, {run(0, 65536)}));
  EXPECT_OK(results_[0]);
  EXPECT_FALSE(direct());
  EXPECT_NE(file_->note().find("a direct request was refused"), std::string::npos) << file_->note();
  fill({aligned_, kLength}, 2);
  ASSERT_OK(execute(Op::kRead, {run(0, 65536)}));
  EXPECT_EQ(aligned_[65535], pattern(1, 65535));
}

TEST_F(FileRailTest, WritesRaggedEndsAfterTheWholeUnits) {
  std::vector<int> fds;
  open(FileSync::kNone, [&](IoRequest* request) -> std::optional<std::int64_t> {
    fds.push_back(request->fd);
    return std::nullopt;
  });
  if (!direct()) GTEST_SKIP() << file_->note();
  ASSERT_OK(execute(Op::kWrite, {run(100, 20000), run(30000, 20000)}));
  const auto first_buffered = std::find(fds.begin(), fds.end(), file_->buffered_fd());
  EXPECT_EQ(std::count(first_buffered, fds.end(), file_->direct_fd()), 0);
  EXPECT_EQ(std::distance(first_buffered, fds.end()), 4);
}

TEST_F(FileRailTest, SyncsBeforeItReportsSuccess) {
  std::vector<IoRequest::Kind> kinds;
  open(FileSync::kData, [&](IoRequest* request) -> std::optional<std::int64_t> {
    kinds.push_back(request->kind);
    return std::nullopt;
  });
  ASSERT_OK(execute(Op::kWrite, {run(0, 4096), run(65536, 100)}));
  EXPECT_EQ(kinds.back(), IoRequest::Kind::kSyncData);
  kinds.clear();
  ASSERT_OK(execute(Op::kRead, {run(0, 4096)}));
  EXPECT_EQ(kinds, std::vector<IoRequest::Kind>{IoRequest::Kind::kRead});
}

TEST_F(FileRailTest, KeepsAFailedSyncInMind) {
  bool failing = true;
  open(FileSync::kFull, [&](IoRequest* request) -> std::optional<std::int64_t> {
    if (request->kind == IoRequest::Kind::kSyncFull && std::exchange(failing, false)) return -EIO;
    return std::nullopt;
  });
  ASSERT_OK(execute(Op::kWrite, {run(0, 4096), run(8192, 4096)}));
  for (const Status& result : results_) EXPECT_EQ(result.code(), Code::kUnavailable) << result.to_string();
  ASSERT_OK(execute(Op::kWrite, {run(0, 4096)}));
  EXPECT_NE(results_[0].message().find("syncing"), std::string::npos) << "the kernel reports a lost write only once";
  ASSERT_OK(execute(Op::kRead, {run(0, 4096)}));
  EXPECT_OK(results_[0]);
}

TEST_F(FileRailTest, AtTheDeadlineStopsWhatIsUnderWayAndWaitsForIt) {
  open(FileSync::kNone, no_fault);
  queue_->hold = true;
  EXPECT_EQ(execute(Op::kRead, {run(0, 4096), run(8192, 4096)}, milliseconds(30)).code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(queue_->cancelled);
  for (const Status& result : results_) EXPECT_EQ(result.code(), Code::kDeadlineExceeded) << result.to_string();
  queue_->hold = false;
  ASSERT_OK(execute(Op::kRead, {run(0, 4096)}));
  EXPECT_OK(results_[0]);
}

TEST_F(FileRailTest, StopsWhenCancelled) {
  open(FileSync::kData, no_fault);
  cancelled_ = true;
  ASSERT_OK(execute(Op::kWrite, {run(0, 4096)}));  // the rail is as good as before
  EXPECT_EQ(results_[0].code(), Code::kCancelled);
  EXPECT_EQ(queue_->started, 0);
}

TEST_F(FileRailTest, RefusesARegionThatWasClosed) {
  open(FileSync::kNone, no_fault);
  ASSERT_OK(regions_.remove(key_, deadline_in(kPatience)));
  ASSERT_OK(execute(Op::kRead, {run(0, 4096)}));
  EXPECT_EQ(results_[0].code(), Code::kStale);
}

TEST_F(FileRailTest, MovesMoreUnalignedRunsThanItHasBuffersFor) {
  open(FileSync::kNone, no_fault);
  std::vector<RunOp> runs;
  for (std::uint64_t i = 0; i < 100; ++i) runs.push_back({aligned_ + i * 5000 + 1, key_, i * 5000, 5000});
  ASSERT_OK(execute(Op::kWrite, runs));
  fill({aligned_, kLength}, 2);
  ASSERT_OK(execute(Op::kRead, runs));
  std::size_t wrong = 0;
  for (std::uint64_t i = 1; i <= 500000; ++i) wrong += aligned_[i] != pattern(1, i);
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace kvferry::testing
