// What the engine asks of an accelerator's driver: what an address is, copies in order, pinned host memory, and handles
// by which another process of this host maps the memory. One implementation per vendor, each in one file; the
// libraries are found at run time (library.h), so that the wheel needs none of them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kvferry/status.h"
#include "kvferry/types.h"

namespace kvferry {

constexpr bool is_device_kind(MemoryKind kind) {
  return kind == MemoryKind::kCuda || kind == MemoryKind::kHip || kind == MemoryKind::kAscend;
}

struct MemoryPlace {  // where bytes lie
  MemoryKind kind = MemoryKind::kHost;
  int device = 0;
  auto operator<=>(const MemoryPlace&) const = default;
  bool is_device() const { return is_device_kind(kind); }
};

// Copies that run in the order they were given, beside the calling thread. Used by one thread at a time. Memory given
// to copy() belongs to the stream until a later record() was reached; the destructor waits for all of it.
class CopyStream {
 public:
  static constexpr std::uint64_t kMarks = 4;  // recorded and not yet reached ones, at most

  virtual ~CopyStream() = default;
  // From and to device memory, pinned or plain host memory. Does not wait for the copy.
  virtual Status copy(void* to, const void* from, std::uint64_t length) = 0;
  // Marks the place behind all copies so far; numbers start at 1 and grow by one.
  virtual Result<std::uint64_t> record() = 0;
  // Whether the copies before the mark have ended, so that their bytes are visible to every reader.
  virtual Result<bool> reached(std::uint64_t mark) = 0;

  // Waits for a mark. kDeadlineExceeded, kCancelled: the copies go on.
  Status wait(std::uint64_t mark, Deadline deadline, const std::atomic<bool>& cancelled);
};

class DeviceDriver {
 public:
  struct Allocation {  // the one that holds an address
    int device = 0;
    std::uint64_t base = 0;
    std::uint64_t length = 0;  // 0: the vendor does not tell
  };

  virtual ~DeviceDriver() = default;
  virtual MemoryKind kind() const = 0;
  virtual std::string describe() const = 0;  // "CUDA driver 12.4, 2 devices"

  // The device allocation that holds `address`; nullopt if it is none of this driver's, for example host memory.
  virtual Result<std::optional<Allocation>> inspect(const void* address) = 0;

  virtual Result<void*> allocate(int device, std::uint64_t length) = 0;
  virtual Status release(int device, void* memory) = 0;
  virtual Result<void*> allocate_pinned(int device, std::uint64_t length) = 0;
  virtual Status release_pinned(int device, void* memory) = 0;
  virtual Result<std::unique_ptr<CopyStream>> open_stream(int device) = 0;

  // An opaque name for the whole allocation, for import_memory() in another process of this host. kUnsupported: the
  // allocation cannot be shared (for example memory of a stream-ordered pool).
  virtual Result<std::string> export_memory(const Allocation& allocation) = 0;
  // Where the allocation begins here. The exporter must keep it allocated meanwhile.
  virtual Result<void*> import_memory(int device, const std::string& handle) = 0;
  virtual Status end_import(int device, void* memory) = 0;
};

// The driver for a kind of device memory, loaded at the first call; it stays for the life of the process, as the
// vendors' libraries do. kUnavailable: not installed or no device, with what to do; kUnsupported: an old version, or a
// kind that has no driver. Thread-safe.
Result<DeviceDriver*> device_driver(MemoryKind kind);

// What is known of the drivers, loading those that are installed: one line per kind, for reports.
struct DriverReport {
  MemoryKind kind;
  Status status;
  std::string text;  // describe(), or why there is none
};
std::array<DriverReport, 3> probe_device_drivers();

// Where an address lies, as far as drivers that are loaded already know; else host memory.
MemoryPlace known_place(const void* address);

}  // namespace kvferry
