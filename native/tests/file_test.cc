// Files as regions of an engine, on real file systems.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <thread>

#include "engine_fixture.h"
#include "mapped_files.h"
#include "process_state.h"

namespace kvferry::testing {
namespace {

constexpr std::uint8_t kBoth = kRemoteRead | kRemoteWrite;

std::uint64_t pinned_kib() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    std::uint64_t value = 0;
    if (word == "VmPin:" && status >> value) return value;
  }
  return 0;
}

std::vector<std::byte> content_of(const std::string& path) {
  std::vector<std::byte> bytes(std::filesystem::file_size(path));
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(::read(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  return bytes;
}

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    engine_ = make_engine();
    ASSERT_TRUE(engine_);
    memory_ = register_buffer(*engine_, 4u << 20, 1);
  }
  void TearDown() override { engine_->close(); }

  FileOptions created(std::uint64_t length) const {
    FileOptions options;
    options.length = length;
    options.create = true;
    options.access = kBoth;
    return options;
  }
  RegionInfo open(const std::string& name, const FileOptions& options) {
    auto region = engine_->open_file(folder_.file(name), options);
    EXPECT_TRUE(region.ok()) << region.status().to_string();
    return region.ok() ? *region : RegionInfo();
  }
  Status move(const RegionInfo& file, std::uint64_t local, std::uint64_t remote, std::uint64_t length, Op op,
              SubmitOptions options = {}) {
    return run(*engine_, engine_->self(), {{memory_.region.key.id, file.key.id, local, remote, length}}, op,
               std::move(options));
  }
  Code refusal(const std::string& name, const FileOptions& options) {
    const auto region = engine_->open_file(folder_.file(name), options);
    EXPECT_FALSE(region.ok());
    EXPECT_NE(region.status().message().find(name), std::string::npos) << region.status().message();
    return region.status().code();
  }

  TemporaryFolder folder_;
  Buffer memory_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(FileTest, StoresAndLoadsBytesAtTheirPlace) {
  const RegionInfo file = open("data", created(1u << 20));
  EXPECT_EQ(file.kind, MemoryKind::kFile);
  ASSERT_OK(move(file, 5, 3, 700001, Op::kWrite));
  const std::vector<std::byte> bytes = content_of(folder_.file("data"));
  ASSERT_EQ(bytes.size(), 1u << 20);
  EXPECT_EQ(bytes[2], std::byte{0});
  EXPECT_EQ(bytes[700004], std::byte{0});
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < 700001; ++i) wrong += bytes[3 + i] != pattern(1, 5 + i);
  EXPECT_EQ(wrong, 0u);
  fill(memory_.bytes, 2);
  ASSERT_OK(move(file, 1u << 20, 3, 700001, Op::kRead));
  for (std::size_t i = 0; i < 700001; ++i) wrong += memory_.bytes[(1u << 20) + i] != pattern(1, 5 + i);
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(engine_->self()->stats().transport, "file");
  EXPECT_EQ(engine_->counters()["file_bytes"], 2u * 700001);
}

TEST_F(FileTest, TellsHowItWorksAndWhy) {
  FileOptions options = created(8192);
  const std::string usual = *engine_->file_note(open("usual", options).key);
  EXPECT_NE(usual.find("; by "), std::string::npos) << usual;
  options.direct = DirectIo::kNever;
  EXPECT_EQ(engine_->file_note(open("cached", options).key)->find("buffered: as asked for; by "), 0u);
  EXPECT_EQ(engine_->file_note(memory_.region.key).status().code(), Code::kNotFound);
}

TEST_F(FileTest, TellsWhenIoUringIsSwitchedOff) {
  EngineOptions options;
  options.io_uring = false;
  const auto engine = make_engine(options);
  auto region = engine->open_file(folder_.file("data"), created(8192));
  ASSERT_TRUE(region.ok());
  EXPECT_NE(engine->file_note(region->key)->find("by pread and pwrite: io_uring is switched off"), std::string::npos);
  EXPECT_NE(engine->self()->transport_note().find("io_uring is switched off"), std::string::npos);
}

TEST_F(FileTest, UsesThePageCacheOnAFileSystemInMemory) {
  const std::string path = "/dev/shm/kvferry-file-test-" + std::to_string(::getpid());
  FileOptions options = created(1u << 20);
  options.direct = DirectIo::kAlways;
  const auto refused = engine_->open_file(path, options);
  if (refused.ok() || refused.status().code() == Code::kNotFound) {
    ::unlink(path.c_str());
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  }
  EXPECT_EQ(refused.status().code(), Code::kUnsupported) << refused.status().to_string();
  EXPECT_NE(::access(path.c_str(), F_OK), 0) << "a file that could not be opened was left behind";
  options.direct = DirectIo::kAuto;
  const auto region = engine_->open_file(path, options);
  ::unlink(path.c_str());
  ASSERT_TRUE(region.ok()) << region.status().to_string();
  EXPECT_EQ(engine_->file_note(region->key)->find("buffered: tmpfs keeps files in memory"), 0u);
  ASSERT_OK(move(*region, 1, 7, 100000, Op::kWrite));
  fill(memory_.bytes, 2);
  ASSERT_OK(move(*region, 0, 7, 100000, Op::kRead));  // also though it was deleted meanwhile
  EXPECT_EQ(memory_.bytes[99999], pattern(1, 100000));
}

TEST_F(FileTest, RefusesWhatItCannotOpen) {
  FileOptions reading;
  EXPECT_EQ(refusal("missing", reading), Code::kNotFound);
  std::ofstream(folder_.file("short")) << "abc";
  reading.length = 4;
  EXPECT_EQ(refusal("short", reading), Code::kOutOfRange);
  std::ofstream(folder_.file("empty")) << "";
  reading.length = 0;
  EXPECT_EQ(refusal("empty", reading), Code::kInvalidArgument);
  ASSERT_EQ(::mkfifo(folder_.file("pipe").c_str(), 0600), 0);
  EXPECT_EQ(refusal("pipe", created(4096)), Code::kInvalidArgument);
  EXPECT_EQ(refusal("", created(4096)), Code::kInvalidArgument);  // the folder itself
  EXPECT_EQ(refusal("unsized", created(0)), Code::kInvalidArgument);
  FileOptions absurd = created(4096);
  absurd.access = 8;
  EXPECT_EQ(refusal("absurd", absurd), Code::kInvalidArgument);
  EXPECT_FALSE(engine_->open_file("", reading).ok());
  EXPECT_EQ(refusal("huge", created(std::uint64_t{1} << 62)), Code::kResourceExhausted);
  EXPECT_NE(::access(folder_.file("huge").c_str(), F_OK), 0) << "a file without its space was left behind";
}

TEST_F(FileTest, WaitsForTheDiskRatherThanFail) {
  open("data", created(4096));
  int checked = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone) != folder_.file("data")) continue;
    const int fd = std::stoi(entry.path().filename().string());
    EXPECT_EQ(::fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    ++checked;
  }
  EXPECT_GE(checked, 1);
}

TEST_F(FileTest, KeepsWhatAFileHoldsWhenItIsOpenedAgain) {
  ASSERT_OK(move(open("data", created(65536)), 0, 0, 65536, Op::kWrite));
  const RegionInfo longer = open("data", created(131072));
  fill(memory_.bytes, 2);
  ASSERT_OK(move(longer, 0, 0, 131072, Op::kRead));
  EXPECT_EQ(memory_.bytes[65535], pattern(1, 65535));
  EXPECT_EQ(memory_.bytes[65536], std::byte{0});
  FileOptions reading;
  EXPECT_EQ(open("data", reading).length, 131072u);
}

TEST_F(FileTest, HonoursWhatItWasOpenedFor) {
  ASSERT_OK(move(open("data", created(4096)), 0, 0, 4096, Op::kWrite));
  const RegionInfo readable = open("data", {});
  EXPECT_EQ(move(readable, 0, 0, 4096, Op::kWrite).code(), Code::kPermissionDenied);
  EXPECT_OK(move(readable, 0, 0, 4096, Op::kRead));
}

TEST_F(FileTest, IsTheRemoteSideOfItsOwnNodeOnly) {
  const RegionInfo file = open("data", created(4096));
  const auto other = make_engine();
  const auto peer = connect(*other, *engine_);
  for (const RegionInfo& region : peer->regions()) EXPECT_NE(region.kind, MemoryKind::kFile);
  Buffer far = register_buffer(*other, 4096, 3);
  EXPECT_EQ(run(*other, peer, {{far.region.key.id, file.key.id, 0, 0, 4096}}, Op::kRead).code(), Code::kNotFound);
  const auto self = engine_->self();
  const Status local = run(*engine_, self, {{file.key.id, memory_.region.key.id, 0, 0, 4096}}, Op::kRead);
  EXPECT_EQ(local.code(), Code::kInvalidArgument) << local.to_string();
  const std::vector<Piece> mixed{{memory_.region.key.id, file.key.id, 0, 0, 4096},
                                 {memory_.region.key.id, memory_.region.key.id, 8192, 0, 4096}};
  EXPECT_EQ(run(*engine_, self, mixed, Op::kRead).code(), Code::kInvalidArgument);
}

TEST_F(FileTest, ReportsThePiecesBeyondTheEndOfATruncatedFile) {
  const RegionInfo file = open("data", created(1u << 20));
  ASSERT_OK(move(file, 0, 0, 1u << 20, Op::kWrite));
  ASSERT_EQ(::truncate(folder_.file("data").c_str(), 500000), 0);
  const std::uint32_t near = memory_.region.key.id, far = file.key.id;
  auto transfer =
      start(*engine_, engine_->self(),
            {{near, far, 0, 0, 4096}, {near, far, 600000, 600000, 4096}, {near, far, 499000, 499000, 2000}}, Op::kRead);
  ASSERT_TRUE(transfer.ok());
  ASSERT_TRUE((*transfer)->wait(kPatience));
  const std::vector<Status> each = (*transfer)->piece_status();
  EXPECT_OK(each[0]);
  EXPECT_EQ(each[1].code(), Code::kOutOfRange) << each[1].to_string();
  EXPECT_EQ(each[2].code(), Code::kOutOfRange) << each[2].to_string();
  EXPECT_NE(each[2].message().find("ends at 500000"), std::string::npos) << each[2].message();
  ASSERT_OK(move(file, 0, 600000, 5000, Op::kWrite));  // a write makes it longer again
}

TEST_F(FileTest, ReportsPiecesBeyondAFileSizeLimit) {
  const RegionInfo file = open("data", created(1u << 20));
  ASSERT_EQ(::truncate(folder_.file("data").c_str(), 0), 0);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit tight = before;
  tight.rlim_cur = 512u << 10;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  const std::uint32_t near = memory_.region.key.id, far = file.key.id;
  auto transfer =
      start(*engine_, engine_->self(), {{near, far, 0, 0, 65536}, {near, far, 700001, 700001, 65536}}, Op::kWrite);
  if (transfer.ok()) (void)(*transfer)->wait(kPatience);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  ASSERT_TRUE(transfer.ok() && (*transfer)->settled());
  const std::vector<Status> each = (*transfer)->piece_status();
  EXPECT_OK(each[0]);
  EXPECT_EQ(each[1].code(), Code::kResourceExhausted) << each[1].to_string();
}

TEST_F(FileTest, ReachesPlacesBeyondFourGiB) {
  const std::string path = folder_.file("sparse");
  std::ofstream(path) << "";
  constexpr std::uint64_t kLong = (std::uint64_t{5} << 30) + 17;
  ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(kLong)), 0);
  FileOptions options;
  options.access = kBoth;
  const RegionInfo file = open("sparse", options);
  ASSERT_EQ(file.length, kLong);
  for (const std::uint64_t place : {(std::uint64_t{1} << 32) - 3000, std::uint64_t{5} << 30, kLong - 100001}) {
    ASSERT_OK(move(file, 1000, place, kLong - place < 100001 ? kLong - place : 100001, Op::kWrite));
  }
  fill(memory_.bytes, 2);
  ASSERT_OK(move(file, 0, kLong - 100001, 100001, Op::kRead));
  EXPECT_EQ(memory_.bytes[100000], pattern(1, 101000));
  ASSERT_OK(move(file, 0, (std::uint64_t{1} << 32) - 3000, 6000, Op::kRead));
  EXPECT_EQ(memory_.bytes[5999], pattern(1, 6999));
  EXPECT_EQ(move(file, 0, kLong - 10, 11, Op::kRead).code(), Code::kOutOfRange);
}

TEST_F(FileTest, KeepsNeighboursThatAreWrittenAtTheSameTime) {
  constexpr std::uint64_t kPiece = 7001, kCount = 64;  // no piece ends where a page ends
  const RegionInfo file = open("data", created(kPiece * kCount));
  for (std::uint64_t round = 1; round <= 5; ++round) {
    fill(memory_.bytes, round);
    std::vector<std::thread> threads;
    std::atomic<int> failures{0};
    for (std::uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (std::uint64_t i = t; i < kCount; i += 4) {
          if (!move(file, i * kPiece + t % 2, i * kPiece, kPiece, Op::kWrite).ok()) ++failures;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(failures, 0);
    const std::vector<std::byte> bytes = content_of(folder_.file("data"));
    std::size_t wrong = 0;
    for (std::uint64_t i = 0; i < bytes.size(); ++i) wrong += bytes[i] != pattern(round, i + i / kPiece % 2);
    ASSERT_EQ(wrong, 0u) << "round " << round;
  }
}

TEST_F(FileTest, WritesToStableStorageWhenAsked) {
  for (const FileSync sync : {FileSync::kData, FileSync::kFull}) {
    FileOptions options = created(300000);
    options.sync = sync;
    const RegionInfo file = open("data" + std::to_string(static_cast<int>(sync)), options);
    ASSERT_OK(move(file, 0, 1, 299999, Op::kWrite));
    fill(memory_.bytes, 2);
    ASSERT_OK(move(file, 0, 1, 299999, Op::kRead));
    EXPECT_EQ(memory_.bytes[299998], pattern(1, 299998));
    fill(memory_.bytes, 1);
  }
}

TEST_F(FileTest, LetsGoOfFilesAndMemory) {
  ASSERT_OK(move(open("first", created(65536)), 0, 0, 65536, Op::kWrite));  // lanes and rings are there from now on
  const std::size_t descriptors = open_descriptors();
  const std::uint64_t pinned = pinned_kib();
  for (int round = 0; round < 20; ++round) {
    Buffer other = register_buffer(*engine_, 1u << 20, 3);
    const RegionInfo file = open("data", created(1u << 20));
    const Piece piece{other.region.key.id, file.key.id, 0, 0, 1u << 20};
    auto transfer = start(*engine_, engine_->self(), {piece}, round % 2 == 0 ? Op::kWrite : Op::kRead);
    ASSERT_TRUE(transfer.ok());
    ASSERT_OK(engine_->unregister(other.region.key, kPatience));
    ASSERT_OK(engine_->unregister(file.key, kPatience));
    fill(other.bytes, 4);  // ours again
    ASSERT_TRUE((*transfer)->wait(kPatience));
    const Status status = (*transfer)->status();
    EXPECT_TRUE(status.ok() || status.code() == Code::kStale) << status.to_string();
    EXPECT_EQ(other.bytes[4242], pattern(4, 4242));
    EXPECT_EQ(engine_->file_note(file.key).status().code(), Code::kNotFound);
  }
  EXPECT_TRUE(eventually([&] { return open_descriptors() == descriptors; }));
  EXPECT_TRUE(eventually([&] { return pinned_kib() <= pinned; })) << pinned_kib() << " KiB, before " << pinned;
}

TEST_F(FileTest, ClosesItsFilesWithTheEngine) {
  const std::size_t before = open_descriptors();
  {
    const auto engine = make_engine();
    const auto file = engine->open_file(folder_.file("data"), created(1u << 20));
    ASSERT_TRUE(file.ok());
    Buffer memory = register_buffer(*engine, 1u << 20, 3);
    auto transfer = start(*engine, engine->self(), {{memory.region.key.id, file->key.id, 0, 0, 1u << 20}}, Op::kWrite);
    ASSERT_TRUE(transfer.ok());
    engine->close();
    EXPECT_TRUE((*transfer)->settled());
    EXPECT_FALSE(engine->open_file(folder_.file("data"), created(4096)).ok());
    EXPECT_FALSE(start(*engine, engine->self(), {}, Op::kWrite).ok());
  }
  EXPECT_TRUE(eventually([&] { return open_descriptors() == before; }));
}

TEST_F(FileTest, CopiesWithinTheNode) {
  const std::uint32_t id = memory_.region.key.id;
  const auto self = engine_->self();
  EXPECT_EQ(self->handle(), 0u);
  EXPECT_EQ(engine_->peer(0), self);
  ASSERT_OK(run(*engine_, self, {{id, id, 2u << 20, 100, 1u << 20}}, Op::kRead));
  EXPECT_EQ(memory_.bytes[(2u << 20) + 5], pattern(1, 105));
  ASSERT_OK(run(*engine_, self, {{id, id, 1, 0, 1u << 20}}, Op::kRead));  // overlapping
  EXPECT_EQ(memory_.bytes[1u << 20], pattern(1, (1u << 20) - 1));
  EXPECT_EQ(self->stats().transport, "local");
  EXPECT_EQ(engine_->counters()["local_bytes"], 2u << 20);
  ASSERT_OK(engine_->send(0, "to myself", kPatience));
  const auto message = engine_->next_message(kPatience);
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->peer, 0u);
  EXPECT_EQ(message->body, "to myself");
}

// A disk that answers after 7 s: nobody may take the memory away before that.
TEST(FileDeadline, ATransferThatCannotBeEndedIsLeftUnderWay) {
  const TemporaryFolder folder;
  EngineOptions options;
  options.fault_plan = "file:stuck=7000@1x1";
  auto engine = make_engine(options);
  FileOptions file_options;
  file_options.length = 4096;
  file_options.create = true;
  file_options.access = kBoth;
  const auto file = engine->open_file(folder.file("data"), file_options);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  Buffer to = register_buffer(*engine, 4096, 2);
  const std::vector<Piece> pieces{{to.region.key.id, file->key.id, 0, 0, 4096}};
  const auto plan = engine->prepare(engine->self(), pieces, Op::kRead);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  SubmitOptions hurried;
  hurried.timeout = milliseconds(50);
  const auto transfer = engine->execute(*plan, hurried);
  EXPECT_EQ(transfer.status().code(), Code::kDeadlineExceeded) << transfer.status().to_string();
  EXPECT_EQ(engine->self()->stats().unsettled_transfers, 1u);
  EXPECT_EQ(engine->unregister(to.region.key, milliseconds(1)).code(), Code::kDeadlineExceeded);
  EXPECT_OK(engine->unregister(to.region.key, kPatience));
  EXPECT_TRUE(eventually([&] { return engine->self()->stats().unsettled_transfers == 0; }));
}

}  // namespace
}  // namespace kvferry::testing
