// The three drivers, each against its imitated library: what is called, in which order, and what becomes of errors.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "device/ascend.h"
#include "device/cuda.h"
#include "device/driver.h"
#include "device/hip.h"

namespace kvferry {
namespace {

using std::chrono_literals::operator""ms;

constexpr std::uint64_t kLength = 1 << 20;
const std::atomic<bool> kGoOn{false};

class Setting {  // an environment variable, for a scope
 public:
  Setting(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~Setting() { ::unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

class Drivers : public testing::TestWithParam<MemoryKind> {
 protected:
  void SetUp() override {
    const auto found = device_driver(GetParam());
    ASSERT_TRUE(found.ok()) << found.status().to_string();
    driver_ = *found;
  }
  void* allocate(int device = 1) {
    auto memory = driver_->allocate(device, kLength);
    EXPECT_TRUE(memory.ok()) << memory.status().to_string();
    return memory.ok() ? *memory : nullptr;
  }
  void finish(CopyStream& stream) {
    const auto mark = stream.record();
    ASSERT_TRUE(mark.ok());
    ASSERT_TRUE(stream.wait(*mark, deadline_in(10000ms), kGoOn).ok());
  }
  DeviceDriver* driver_ = nullptr;
};

std::string name_of(const testing::TestParamInfo<MemoryKind>& info) {
  return std::string(memory_kind_name(info.param));
}
INSTANTIATE_TEST_SUITE_P(Vendors, Drivers, testing::Values(MemoryKind::kCuda, MemoryKind::kHip, MemoryKind::kAscend),
                         name_of);

TEST_P(Drivers, TellDeviceMemoryFromHostMemory) {
  EXPECT_EQ(driver_->kind(), GetParam());
  EXPECT_NE(driver_->describe().find("2 devices"), std::string::npos);
  void* const memory = allocate();
  const auto found = driver_->inspect(static_cast<std::byte*>(memory) + 5);
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ((*found)->device, 1);
  if ((*found)->length != 0) {
    EXPECT_EQ((*found)->base, reinterpret_cast<std::uint64_t>(memory));
    EXPECT_EQ((*found)->length, kLength);
  }
  EXPECT_TRUE(known_place(memory).is_device());
  const int on_the_stack = 0;
  const auto host = driver_->inspect(&on_the_stack);
  ASSERT_TRUE(host.ok());
  EXPECT_FALSE(host->has_value());
  EXPECT_TRUE(known_place(&on_the_stack) == MemoryPlace());
  const auto pinned = driver_->allocate_pinned(1, kLength);
  ASSERT_TRUE(pinned.ok());
  const auto of_pinned = driver_->inspect(static_cast<std::byte*>(*pinned) + 5);
  ASSERT_TRUE(of_pinned.ok());
  EXPECT_FALSE(of_pinned->has_value()) << "pinned memory is the host's";
  EXPECT_TRUE(known_place(*pinned) == MemoryPlace());
  EXPECT_TRUE(driver_->release_pinned(1, *pinned).ok());
  EXPECT_TRUE(driver_->release(1, memory).ok());
}

TEST_P(Drivers, CopyInOrderThroughPinnedMemory) {
  void* const memory = allocate(0);
  auto pinned = driver_->allocate_pinned(0, kLength);
  ASSERT_TRUE(pinned.ok());
  auto* const bytes = static_cast<std::byte*>(*pinned);
  auto stream = driver_->open_stream(0);
  ASSERT_TRUE(stream.ok()) << stream.status().to_string();
  std::vector<std::byte> back(kLength);
  for (int round = 1; round <= 10; ++round) {
    std::memset(bytes, round, kLength);
    ASSERT_TRUE((*stream)->copy(memory, bytes, kLength).ok());
    ASSERT_TRUE((*stream)->copy(back.data(), memory, kLength).ok());
    finish(**stream);
    ASSERT_EQ(back.front(), std::byte(round));
    ASSERT_EQ(back.back(), std::byte(round));
  }
  stream->reset();
  EXPECT_TRUE(driver_->release_pinned(0, bytes).ok());
  EXPECT_TRUE(driver_->release(0, memory).ok());
}

TEST_P(Drivers, AnnounceACopyOnlyWhenItsBytesAreThere) {
  const Setting slow("FAKE_DEVICE_COPY_US", "30000");
  void* const memory = allocate(0);
  std::vector<std::byte> source(kLength, std::byte{7}), target(kLength);
  auto stream = driver_->open_stream(0);
  ASSERT_TRUE(stream.ok());
  ASSERT_TRUE((*stream)->copy(memory, source.data(), kLength).ok());
  const auto mark = (*stream)->record();
  ASSERT_TRUE(mark.ok());
  const auto at_once = (*stream)->reached(*mark);
  ASSERT_TRUE(at_once.ok());
  EXPECT_FALSE(*at_once);
  EXPECT_EQ((*stream)->wait(*mark, deadline_in(0ms), kGoOn).code(), Code::kDeadlineExceeded);
  const std::atomic<bool> cancelled{true};
  EXPECT_EQ((*stream)->wait(*mark, deadline_in(10000ms), cancelled).code(), Code::kCancelled);
  ASSERT_TRUE((*stream)->copy(target.data(), memory, kLength).ok());
  stream->reset();  // waits for what is under way
  EXPECT_EQ(target.back(), std::byte{7});
  EXPECT_TRUE(driver_->release(0, memory).ok());
}

TEST_P(Drivers, LimitOpenMarksAndReuseReachedOnes) {
  const Setting slow("FAKE_DEVICE_COPY_US", "20000");
  void* const memory = allocate(0);
  std::vector<std::byte> source(kLength);
  auto stream = driver_->open_stream(0);
  ASSERT_TRUE(stream.ok());
  ASSERT_TRUE((*stream)->copy(memory, source.data(), kLength).ok());
  std::uint64_t last = 0;
  for (std::uint64_t i = 0; i < CopyStream::kMarks; ++i) {
    const auto mark = (*stream)->record();
    ASSERT_TRUE(mark.ok());
    last = *mark;
  }
  EXPECT_EQ((*stream)->record().status().code(), Code::kResourceExhausted);
  ASSERT_TRUE((*stream)->wait(last, deadline_in(10000ms), kGoOn).ok());
  finish(**stream);
  EXPECT_TRUE(driver_->release(0, memory).ok());
}

TEST_P(Drivers, ShareMemoryWithAnotherProcess) {
  void* const memory = allocate(0);
  std::vector<std::byte> source(kLength, std::byte{42});
  auto stream = driver_->open_stream(0);
  ASSERT_TRUE(stream.ok());
  ASSERT_TRUE((*stream)->copy(memory, source.data(), kLength).ok());
  finish(**stream);
  auto allocation = driver_->inspect(memory);
  ASSERT_TRUE(allocation.ok() && allocation->has_value());
  if ((*allocation)->length == 0) (*allocation)->length = kLength;
  const auto handle = driver_->export_memory(**allocation);
  ASSERT_TRUE(handle.ok()) << handle.status().to_string();

  const auto imported = driver_->import_memory(0, *handle);
  ASSERT_TRUE(imported.ok()) << imported.status().to_string();
  EXPECT_NE(*imported, memory);
  std::vector<std::byte> seen(kLength);
  ASSERT_TRUE((*stream)->copy(seen.data(), *imported, kLength).ok());
  finish(**stream);
  EXPECT_EQ(seen.back(), std::byte{42});
  EXPECT_TRUE(driver_->end_import(0, *imported).ok());
  EXPECT_FALSE(driver_->end_import(0, *imported).ok());
  EXPECT_EQ(driver_->import_memory(0, "").status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(driver_->release(0, memory).ok());
}

TEST_P(Drivers, NameTheDeviceThatDoesNotExist) {
  const Status none = driver_->allocate(2, kLength).status();
  EXPECT_EQ(none.code(), Code::kInvalidArgument);
  EXPECT_NE(none.message().find("device 2"), std::string::npos);
  EXPECT_EQ(driver_->open_stream(-1).status().code(), Code::kInvalidArgument);
}

TEST(CudaDriver, MakesItsContextCurrentAroundEachCallAndLeavesTheThreadAsItWas) {
  const std::string log = testing::TempDir() + "/cuda_calls";
  std::remove(log.c_str());
  const auto driver = device_driver(MemoryKind::kCuda);
  ASSERT_TRUE(driver.ok());
  {
    const Setting logged("FAKE_DEVICE_LOG", log);
    auto memory = (*driver)->allocate(0, 4096);
    ASSERT_TRUE(memory.ok());
    ASSERT_TRUE((*driver)->release(0, *memory).ok());
  }
  std::ifstream file(log);
  std::vector<std::string> calls;
  for (std::string line; std::getline(file, line);) {
    if (line != "cuDevicePrimaryCtxRetain") calls.push_back(line);  // once per process
  }
  const std::vector<std::string> wanted{"cuCtxPushCurrent", "cuMemAlloc", "cuCtxPopCurrent",
                                        "cuCtxPushCurrent", "cuMemFree",  "cuCtxPopCurrent"};
  EXPECT_EQ(calls, wanted);
}

TEST(CudaDriver, ReportsTheCallThatFailed) {
  const auto driver = device_driver(MemoryKind::kCuda);
  ASSERT_TRUE(driver.ok());
  const Setting broken("FAKE_DEVICE_FAIL", "cuMemAlloc");
  const Status failed = (*driver)->allocate(0, 4096).status();
  EXPECT_EQ(failed.code(), Code::kUnavailable);
  EXPECT_NE(failed.message().find("cuMemAlloc: CUDA_ERROR_UNKNOWN"), std::string::npos) << failed.message();
}

TEST(CudaDriver, SaysThatMemoryCannotBeShared) {
  const auto driver = device_driver(MemoryKind::kCuda);
  ASSERT_TRUE(driver.ok());
  const auto memory = (*driver)->allocate(0, 4096);
  ASSERT_TRUE(memory.ok());
  const auto found = (*driver)->inspect(*memory);
  ASSERT_TRUE(found.ok() && found->has_value());
  const Setting broken("FAKE_DEVICE_FAIL", "cuIpcGetMemHandle");
  EXPECT_EQ((*driver)->export_memory(**found).status().code(), Code::kUnsupported);
}

// Loading happens once per process, so each of these asks a driver of its own.
TEST(LoadDriver, NeedsADevice) {
  const Setting none("FAKE_DEVICE_COUNT", "0");
  EXPECT_EQ(load_cuda_driver().status().code(), Code::kUnavailable);
  EXPECT_EQ(load_hip_driver().status().code(), Code::kUnavailable);
  EXPECT_EQ(load_ascend_driver().status().code(), Code::kUnavailable);
}

TEST(LoadDriver, ReportsAnInitialisationThatFails) {
  for (const char* call : {"cuInit", "hipInit", "aclInit"}) {
    const Setting broken("FAKE_DEVICE_FAIL", call);
    const Status status = call[0] == 'c'   ? load_cuda_driver().status()
                          : call[0] == 'h' ? load_hip_driver().status()
                                           : load_ascend_driver().status();
    EXPECT_NE(status.message().find(call), std::string::npos) << status.to_string();
  }
}

TEST(LoadDriver, HasNoneForOtherKinds) {
  EXPECT_EQ(device_driver(MemoryKind::kFile).status().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace kvferry
