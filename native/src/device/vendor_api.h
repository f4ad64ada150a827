// The calls of a vendor's library that a DeviceDriver is made of, with the vendor's types erased: a stream and an event
// are pointers. Everything but inspect(), query() and the error texts is called between enter() and leave().
#pragma once

#include <memory>
#include <string>

#include "device/driver.h"

namespace kvferry {

class VendorApi {
 public:
  using Allocation = DeviceDriver::Allocation;

  virtual ~VendorApi() = default;
  virtual MemoryKind kind() const = 0;
  virtual std::string describe() const = 0;
  virtual int device_count() const = 0;

  // Makes a device current for the calling thread, often a user's, and afterwards restores what was current before.
  virtual Result<void*> enter(int device) = 0;
  virtual void leave(void* previous) = 0;

  virtual Result<std::optional<Allocation>> inspect(const void* address) = 0;
  virtual Result<void*> allocate(std::uint64_t length) = 0;
  virtual Status release(void* memory) = 0;
  virtual Result<void*> allocate_pinned(std::uint64_t length) = 0;
  virtual Status release_pinned(void* memory) = 0;

  virtual Result<void*> create_stream() = 0;
  virtual void destroy_stream(void* stream) = 0;
  virtual Status synchronize(void* stream) = 0;
  virtual Status copy(void* to, const void* from, std::uint64_t length, void* stream) = 0;

  virtual Result<void*> create_event() = 0;
  virtual void destroy_event(void* event) = 0;
  virtual Status record(void* event, void* stream) = 0;
  virtual Result<bool> query(void* event) = 0;

  virtual Result<std::string> export_memory(const Allocation& allocation) = 0;
  virtual Result<void*> import_memory(const std::string& handle) = 0;
  virtual Status end_import(void* memory) = 0;
};

std::unique_ptr<DeviceDriver> make_driver(std::unique_ptr<VendorApi> api);

}  // namespace kvferry
