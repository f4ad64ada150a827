// Device memory through pinned host memory, against the imitated CUDA driver.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "base/deadline.h"
#include "device/staging.h"

namespace kvferry {
namespace {

using std::chrono_literals::operator""ms;

constexpr MemoryPlace kPlace{MemoryKind::kCuda, 1};
constexpr std::uint64_t kLength = 3u << 20;
const std::atomic<bool> kGoOn{false};

std::vector<std::byte> pattern(std::uint64_t length) {
  std::mt19937 random(7);  // NOLINT: the same bytes each time
  std::vector<std::byte> out(length);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

class StagingTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto driver = device_driver(MemoryKind::kCuda);
    ASSERT_TRUE(driver.ok()) << driver.status().to_string();
    driver_ = *driver;
    const auto memory = driver_->allocate(kPlace.device, kLength);
    ASSERT_TRUE(memory.ok());
    memory_ = static_cast<std::byte*>(*memory);
  }
  void TearDown() override {
    ::unsetenv("FAKE_DEVICE_COPY_US");
    ::unsetenv("FAKE_DEVICE_FAIL");
    EXPECT_TRUE(driver_->release(kPlace.device, memory_).ok());
  }
  static Staging::Limits limits(milliseconds timeout = 20000ms) { return {deadline_in(timeout), kGoOn}; }

  Status put(const std::vector<Staging::Part>& parts, const std::vector<std::byte>& bytes) {
    std::size_t done = 0;
    return staging_.in(kPlace, parts, limits(), [&](std::span<std::byte> room) {
      std::memcpy(room.data(), bytes.data() + done, room.size());
      done += room.size();
      return Status();
    });
  }
  Result<std::vector<std::byte>> get(const std::vector<Staging::Part>& parts) {
    std::vector<std::byte> out;
    KVF_RETURN_IF_ERROR(staging_.out(kPlace, parts, limits(), [&](std::span<const std::byte> bytes) {
      out.insert(out.end(), bytes.begin(), bytes.end());
      return Status();
    }));
    return out;
  }

  DeviceDriver* driver_ = nullptr;
  std::byte* memory_ = nullptr;
  Staging staging_;
};

TEST_F(StagingTest, KeepsEveryByteInItsPlace) {
  const std::vector<std::byte> bytes = pattern(kLength);
  ASSERT_TRUE(put({{memory_, kLength}}, bytes).ok());
  const auto back = get({{memory_, kLength}});
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(*back == bytes);
}

TEST_F(StagingTest, GathersAndScattersPartsOfAnySize) {
  std::vector<Staging::Part> parts;
  std::uint64_t offset = 0, total = 0;
  for (const std::uint64_t length : {1u, 4095u, 0u, 300u << 10, 64u << 10, 700u << 10, 17u}) {
    parts.push_back({memory_ + offset, length});
    offset += length + 13;
    total += length;
  }
  const std::vector<std::byte> bytes = pattern(total);
  ASSERT_TRUE(put(parts, bytes).ok());
  const auto back = get(parts);
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(*back == bytes);
  EXPECT_TRUE(put({}, {}).ok());
}

TEST_F(StagingTest, HandsOutNoChunkBeforeItsCopyEnded) {
  const std::vector<std::byte> bytes = pattern(kLength);
  ASSERT_TRUE(put({{memory_, kLength}}, bytes).ok());
  ::setenv("FAKE_DEVICE_COPY_US", "3000", 1);
  const auto back = get({{memory_, kLength}});
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(*back == bytes);
}

TEST_F(StagingTest, EndsItsCopiesWhenTheOtherSideFails) {
  ::setenv("FAKE_DEVICE_COPY_US", "5000", 1);
  const Status lost = staging_.in(kPlace, std::vector<Staging::Part>{{memory_, kLength}}, limits(),
                                  [calls = 0](std::span<std::byte>) mutable {
                                    return ++calls < 3 ? Status() : Status(Code::kPeerLost, "the peer went away");
                                  });
  EXPECT_EQ(lost.code(), Code::kPeerLost);
  ::unsetenv("FAKE_DEVICE_COPY_US");
  const std::vector<std::byte> bytes = pattern(kLength);  // no late copy spoils what is written now
  ASSERT_TRUE(put({{memory_, kLength}}, bytes).ok());
  const auto back = get({{memory_, kLength}});
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(*back == bytes);
}

TEST_F(StagingTest, ObeysDeadlineAndCancel) {
  ::setenv("FAKE_DEVICE_COPY_US", "50000", 1);
  const auto ignore = [](std::span<const std::byte>) { return Status(); };
  const std::vector<Staging::Part> parts{{memory_, kLength}};
  EXPECT_EQ(staging_.out(kPlace, parts, limits(1ms), ignore).code(), Code::kDeadlineExceeded);
  const std::atomic<bool> cancelled{true};
  EXPECT_EQ(staging_.out(kPlace, parts, {deadline_in(20000ms), cancelled}, ignore).code(), Code::kCancelled);
}

TEST_F(StagingTest, ReportsTheDriversError) {
  ::setenv("FAKE_DEVICE_FAIL", "cuMemHostAlloc", 1);
  const Status status = put({{memory_, kLength}}, pattern(kLength));
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("cuMemHostAlloc"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace kvferry
