// Whole engines that move memory of (imitated) accelerators: over tcp, through pinned memory, in every combination.
#include <cstdlib>

#include "base/deadline.h"
#include "device/driver.h"
#include "engine_fixture.h"

namespace kvferry::testing {
namespace {

constexpr std::uint64_t kLength = 5u << 20;

// Some memory of one kind, registered with an engine, whose bytes tests reach through the driver.
class Memory {
 public:
  Memory(Engine& engine, MemoryKind kind, std::uint64_t seed) : kind_(kind) {
    bytes_.resize(kLength);
    fill(bytes_, seed);
    std::byte* data = bytes_.data();
    if (kind != MemoryKind::kHost) data = allocate();
    auto made = engine.register_memory(data, kLength, "memory", kRemoteRead | kRemoteWrite, kind);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (made.ok()) region = *made;
  }
  ~Memory() {
    if (device_ != nullptr) EXPECT_OK((*driver_)->release(1, device_));
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::vector<std::byte> read() {
    if (device_ != nullptr) copy(bytes_.data(), device_);
    return bytes_;
  }

  RegionInfo region;

 private:
  std::byte* allocate() {
    driver_ = device_driver(kind_);
    EXPECT_TRUE(driver_.ok()) << driver_.status().to_string();
    device_ = static_cast<std::byte*>((*driver_)->allocate(1, kLength).value());
    copy(device_, bytes_.data());
    return device_;
  }
  void copy(std::byte* to, const std::byte* from) {
    auto stream = (*driver_)->open_stream(1);
    ASSERT_TRUE(stream.ok());
    ASSERT_OK((*stream)->copy(to, from, kLength));  // the stream's end waits for it
  }

  const MemoryKind kind_;
  Result<DeviceDriver*> driver_{Code::kUnavailable, "not asked"};
  std::byte* device_ = nullptr;
  std::vector<std::byte> bytes_;
};

struct Case {
  MemoryKind near, far;
  bool checksum = false;
};

class DeviceTransfer : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    EngineOptions options = options_for({"shm", "tcp"});
    options.checksum = GetParam().checksum;
    near_ = make_engine(options);
    far_ = make_engine(options);
    ASSERT_TRUE(near_ && far_);
  }
  void TearDown() override {
    ::unsetenv("FAKE_DEVICE_COPY_US");
    ::unsetenv("FAKE_DEVICE_FAIL");
  }
  std::unique_ptr<Engine> near_, far_;
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return std::string(memory_kind_name(info.param.near)) + "_" + std::string(memory_kind_name(info.param.far)) +
         (info.param.checksum ? "_checksum" : "");
}
INSTANTIATE_TEST_SUITE_P(
    Kinds, DeviceTransfer,
    ::testing::Values(Case{MemoryKind::kHost, MemoryKind::kCuda}, Case{MemoryKind::kCuda, MemoryKind::kHost},
                      Case{MemoryKind::kCuda, MemoryKind::kCuda}, Case{MemoryKind::kCuda, MemoryKind::kCuda, true},
                      Case{MemoryKind::kHip, MemoryKind::kHip}, Case{MemoryKind::kAscend, MemoryKind::kHost}),
    case_name);

// Scattered pieces of odd sizes, some of them next to each other.
std::vector<Piece> scattered(const RegionInfo& near, const RegionInfo& far) {
  std::vector<Piece> pieces;
  std::uint64_t at = 0;
  for (const std::uint64_t length : {1u, 4095u, 65536u, 65536u, 300000u, 1u << 20, 7u}) {
    pieces.push_back({near.key.id, far.key.id, kLength / 2 + at, at + 11, length});
    at += length + (length % 2 == 0 ? 0 : 13);
  }
  return pieces;
}

TEST_P(DeviceTransfer, ReadAndWriteScatteredPieces) {
  ::setenv("FAKE_DEVICE_COPY_US", "200", 1);
  for (const Op op : {Op::kRead, Op::kWrite}) {
    Memory near(*near_, GetParam().near, 1), far(*far_, GetParam().far, 2);
    const auto peer = connect(*near_, *far_);
    ASSERT_TRUE(peer);
    std::vector<std::byte> want_near = near.read(), want_far = far.read();
    const std::vector<Piece> pieces = scattered(near.region, far.region);
    for (const Piece& piece : pieces) {
      std::byte* const ours = want_near.data() + piece.local_offset;
      std::byte* const theirs = want_far.data() + piece.remote_offset;
      std::memcpy(op == Op::kRead ? ours : theirs, op == Op::kRead ? theirs : ours, piece.length);
    }
    const auto transfer = start(*near_, peer, pieces, op);
    ASSERT_TRUE(transfer.ok()) << transfer.status().to_string();
    ASSERT_TRUE((*transfer)->wait(kPatience));
    ASSERT_OK((*transfer)->status());
    EXPECT_EQ((*transfer)->transport(), "tcp");
    EXPECT_TRUE(near.read() == want_near);
    EXPECT_TRUE(far.read() == want_far);
    EXPECT_OK(near_->unregister(near.region.key, kPatience));
    EXPECT_OK(far_->unregister(far.region.key, kPatience));
    peer->close();
  }
}

TEST_P(DeviceTransfer, HostMemoryStillGoesByShm) {
  Memory near(*near_, GetParam().near, 1), far(*far_, GetParam().far, 2);
  const Buffer ours = register_buffer(*near_, 4096, 3), theirs = register_buffer(*far_, 4096, 4);
  const auto peer = connect(*near_, *far_);
  ASSERT_TRUE(peer);
  ASSERT_OK(run(*near_, peer, scattered(near.region, far.region), Op::kRead));
  const auto transfer = start(*near_, peer, {{ours.region.key.id, theirs.region.key.id, 0, 0, 4096}}, Op::kRead);
  ASSERT_TRUE(transfer.ok());
  ASSERT_TRUE((*transfer)->wait(kPatience));
  EXPECT_EQ((*transfer)->transport(), "shm");
  EXPECT_EQ(peer->stats().by_transport.size(), 2u);
}

TEST_P(DeviceTransfer, DeadlineAndCancelEndCopiesBeforeMemoryIsFree) {
  ::setenv("FAKE_DEVICE_COPY_US", "20000", 1);
  Memory near(*near_, GetParam().near, 1), far(*far_, GetParam().far, 2);
  const auto peer = connect(*near_, *far_);
  ASSERT_TRUE(peer);
  const Piece whole{near.region.key.id, far.region.key.id, 0, 0, kLength};
  SubmitOptions hurried;
  hurried.timeout = milliseconds(30);
  EXPECT_EQ(run(*near_, peer, {whole}, Op::kRead, hurried).code(), Code::kDeadlineExceeded);
  const auto transfer = start(*near_, peer, {whole}, Op::kWrite);
  ASSERT_TRUE(transfer.ok());
  (*transfer)->cancel();
  ASSERT_TRUE((*transfer)->wait(kPatience));
  EXPECT_EQ((*transfer)->status().code(), Code::kCancelled);
  EXPECT_OK(near_->unregister(near.region.key, kPatience));
  EXPECT_OK(far_->unregister(far.region.key, kPatience));
}

// Nobody asks the driver again what an address is: after a fault of the device it calls none its own, and to read the
// device's memory as if it were the host's would end the process.
TEST(DeviceMemory, StaysWhatItIsWhenTheDriverBreaks) {
  EngineOptions options = options_for({"tcp"});
  options.checksum = true;
  const auto near = make_engine(options), far = make_engine(options);
  ASSERT_TRUE(near && far);
  Memory device(*near, MemoryKind::kCuda, 1);
  const Buffer host = register_buffer(*far, kLength, 2);
  const auto peer = connect(*near, *far);
  ASSERT_TRUE(peer);
  ::setenv("FAKE_DEVICE_FAIL", "cuPointerGetAttribute", 1);
  for (const Op op : {Op::kRead, Op::kWrite}) {
    EXPECT_OK(run(*near, peer, {{device.region.key.id, host.region.key.id, 3, 5, 100000}}, op));
  }
  ::unsetenv("FAKE_DEVICE_FAIL");
  EXPECT_TRUE(std::equal(host.bytes.begin() + 5, host.bytes.begin() + 100005, device.read().begin() + 3));
  EXPECT_OK(near->unregister(device.region.key, kPatience));
}

TEST(DeviceMemory, IsRegisteredOnlyAsWhatItIs) {
  const auto engine = make_engine();
  const auto driver = device_driver(MemoryKind::kCuda);
  ASSERT_TRUE(engine && driver.ok());
  const auto memory = (*driver)->allocate(0, 4096);
  ASSERT_TRUE(memory.ok());
  std::vector<std::byte> host(4096);
  const auto refused = [&](void* data, std::uint64_t length, MemoryKind kind) {
    return engine->register_memory(data, length, "x", kRemoteRead, kind).status().to_string();
  };
  EXPECT_NE(refused(*memory, 4096, MemoryKind::kHost).find("register it as kind 'cuda'"), std::string::npos)
      << refused(*memory, 4096, MemoryKind::kHost);
  EXPECT_NE(refused(host.data(), 4096, MemoryKind::kCuda).find("other memory"), std::string::npos);
  EXPECT_NE(refused(*memory, 4097, MemoryKind::kCuda).find("leave the allocation"), std::string::npos);
  EXPECT_NE(refused(host.data(), 4096, MemoryKind::kDax).find("'dax'"), std::string::npos);
  const auto shm_only = make_engine(options_for({"shm"}));
  const auto unreachable = shm_only->register_memory(*memory, 4096, "x", kRemoteRead, MemoryKind::kCuda);
  EXPECT_EQ(unreachable.status().code(), Code::kUnsupported);
  EXPECT_NE(unreachable.status().message().find("'cuda'"), std::string::npos);
  EXPECT_OK((*driver)->release(0, *memory));
}

TEST(DeviceMemory, IsNotMovedWithinTheOwnNode) {
  const auto engine = make_engine();
  ASSERT_TRUE(engine);
  Memory device(*engine, MemoryKind::kCuda, 1), host(*engine, MemoryKind::kHost, 2);
  const auto plan = engine->prepare(
      engine->self(), std::vector<Piece>{{host.region.key.id, device.region.key.id, 0, 0, 64}}, Op::kRead);
  EXPECT_EQ(plan.status().code(), Code::kUnsupported) << plan.status().to_string();
}

}  // namespace
}  // namespace kvferry::testing
