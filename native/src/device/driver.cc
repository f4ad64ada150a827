#include "device/driver.h"

#include <mutex>
#include <thread>

#include "base/deadline.h"
#include "device/ascend.h"
#include "device/cuda.h"
#include "device/hip.h"

namespace kvferry {
namespace {

// A copy of a slice takes 10 to 500 us: looking again at once is cheaper than a sleep, for a while.
constexpr std::chrono::microseconds kSpin{100};
constexpr std::chrono::microseconds kPause{50};

constexpr std::array<MemoryKind, 3> kKinds{MemoryKind::kCuda, MemoryKind::kHip, MemoryKind::kAscend};

struct Loaded {
  std::mutex mutex;  // guards what follows; also keeps two threads from loading one library at once
  std::unique_ptr<DeviceDriver> driver;
};

std::atomic<int> loaded_drivers{0};  // most processes have none, and should not pay for asking

Loaded* slot_of(MemoryKind kind) {
  static std::array<Loaded, 3>* const slots = new std::array<Loaded, 3>;  // never destroyed: see device_driver()
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    if (kKinds[i] == kind) return &(*slots)[i];
  }
  return nullptr;
}

Result<std::unique_ptr<DeviceDriver>> load(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kCuda:
      return load_cuda_driver();
    case MemoryKind::kHip:
      return load_hip_driver();
    default:
      return load_ascend_driver();
  }
}

}  // namespace

Status CopyStream::wait(std::uint64_t mark, Deadline deadline, const std::atomic<bool>& cancelled) {
  const Clock::time_point pause_after = Clock::now() + kSpin;
  for (;;) {
    KVF_ASSIGN_OR_RETURN(const bool done, reached(mark));
    if (done) return {};
    if (cancelled.load(std::memory_order_relaxed)) return {Code::kCancelled, "cancelled"};
    const Clock::time_point now = Clock::now();
    if (now >= deadline) return {Code::kDeadlineExceeded, "a copy to or from device memory did not end in time"};
    if (now >= pause_after) std::this_thread::sleep_for(kPause);
  }
}

Result<DeviceDriver*> device_driver(MemoryKind kind) {
  Loaded* const slot = slot_of(kind);
  if (slot == nullptr) {
    return {Code::kUnsupported, "memory of kind '" + std::string(memory_kind_name(kind)) + "' has no device driver"};
  }
  const std::lock_guard lock(slot->mutex);
  if (!slot->driver) {
    KVF_ASSIGN_OR_RETURN(slot->driver, load(kind));
    loaded_drivers.fetch_add(1, std::memory_order_release);
  }
  return slot->driver.get();
}

std::array<DriverReport, 3> probe_device_drivers() {
  std::array<DriverReport, 3> out;
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    const auto driver = device_driver(kKinds[i]);
    out[i] = {kKinds[i], driver.status(), driver.ok() ? (*driver)->describe() : driver.status().message()};
  }
  return out;
}

MemoryPlace known_place(const void* address) {
  if (loaded_drivers.load(std::memory_order_acquire) == 0) return {};
  for (const MemoryKind kind : kKinds) {
    Loaded* const slot = slot_of(kind);
    const std::lock_guard lock(slot->mutex);
    if (!slot->driver) continue;
    const auto found = slot->driver->inspect(address);
    if (found.ok() && found->has_value()) return {kind, (*found)->device};
  }
  return {};
}

}  // namespace kvferry
