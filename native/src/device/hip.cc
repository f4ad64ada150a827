// Names, values and layouts are those of the HIP runtime API reference (rocm.docs.amd.com). Never run on AMD hardware:
// tested against a library that imitates it.
#include "device/hip.h"

#include <cstring>

#include "device/library.h"
#include "device/vendor_api.h"

namespace kvferry {
namespace {

struct IpcHandle {
  char bytes[64];
};

constexpr int kSuccess = 0, kOutOfMemory = 2, kNotReady = 600;
constexpr int kHostPointer = 4;         // HIP_POINTER_ATTRIBUTE_HOST_POINTER
constexpr int kDeviceOrdinal = 9;       // HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr int kCopyDefault = 4;         // hipMemcpyDefault: the addresses tell the direction
constexpr unsigned kNonBlocking = 1;    // hipStreamNonBlocking
constexpr unsigned kDisableTiming = 2;  // hipEventDisableTiming
constexpr unsigned kPortable = 1;       // hipHostMallocPortable
constexpr unsigned kLazyPeerAccess = 1;

struct Calls {
  int (*init)(unsigned flags);
  int (*runtime_version)(int* version);
  int (*device_count)(int* count);
  const char* (*error_name)(int error);
  int (*get_device)(int* device);
  int (*set_device)(int device);
  int (*pointer_attribute)(void* data, int attribute, void* address);
  int (*address_range)(void** base, std::size_t* length, void* address);
  int (*alloc)(void** memory, std::size_t length);
  int (*free)(void* memory);
  int (*host_alloc)(void** memory, std::size_t length, unsigned flags);
  int (*host_free)(void* memory);
  int (*copy)(void* to, const void* from, std::size_t length, int kind, void* stream);
  int (*stream_create)(void** stream, unsigned flags);
  int (*stream_destroy)(void* stream);
  int (*stream_synchronize)(void* stream);
  int (*event_create)(void** event, unsigned flags);
  int (*event_destroy)(void* event);
  int (*event_record)(void* event, void* stream);
  int (*event_query)(void* event);
  int (*ipc_get)(IpcHandle* handle, void* memory);
  int (*ipc_open)(void** memory, IpcHandle handle, unsigned flags);
  int (*ipc_close)(void* memory);
};

Status bind_calls(const Library& library, Calls* calls) {
  KVF_RETURN_IF_ERROR(library.bind(&calls->init, "hipInit"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->runtime_version, "hipRuntimeGetVersion"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->device_count, "hipGetDeviceCount"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->error_name, "hipGetErrorName"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->get_device, "hipGetDevice"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->set_device, "hipSetDevice"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->pointer_attribute, "hipPointerGetAttribute"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->address_range, "hipMemGetAddressRange"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->alloc, "hipMalloc"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->free, "hipFree"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->host_alloc, "hipHostMalloc"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->host_free, "hipHostFree"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->copy, "hipMemcpyAsync"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->stream_create, "hipStreamCreateWithFlags"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->stream_destroy, "hipStreamDestroy"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->stream_synchronize, "hipStreamSynchronize"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->event_create, "hipEventCreateWithFlags"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->event_destroy, "hipEventDestroy"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->event_record, "hipEventRecord"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->event_query, "hipEventQuery"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->ipc_get, "hipIpcGetMemHandle"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->ipc_open, "hipIpcOpenMemHandle"));
  return library.bind(&calls->ipc_close, "hipIpcCloseMemHandle");
}

// The runtime has a current device per thread, not a stack of contexts: `previous` carries its number.
void* as_pointer(int device) { return reinterpret_cast<void*>(static_cast<std::intptr_t>(device)); }   // NOLINT
int as_device(void* previous) { return static_cast<int>(reinterpret_cast<std::intptr_t>(previous)); }  // NOLINT

class HipApi final : public VendorApi {
 public:
  explicit HipApi(Library library) : library_(std::move(library)) {}
  Status start();

  MemoryKind kind() const override { return MemoryKind::kHip; }
  std::string describe() const override { return "HIP runtime " + std::to_string(version_); }
  int device_count() const override { return device_count_; }
  Result<void*> enter(int device) override {
    int previous = 0;
    KVF_RETURN_IF_ERROR(check(calls_.get_device(&previous), "hipGetDevice"));
    KVF_RETURN_IF_ERROR(check(calls_.set_device(device), "hipSetDevice"));
    return as_pointer(previous);
  }
  void leave(void* previous) override { calls_.set_device(as_device(previous)); }
  Result<std::optional<Allocation>> inspect(const void* address) override;

  Result<void*> allocate(std::uint64_t length) override {
    return made([&](void** memory) { return calls_.alloc(memory, length); }, "hipMalloc");
  }
  Status release(void* memory) override { return check(calls_.free(memory), "hipFree"); }
  Result<void*> allocate_pinned(std::uint64_t length) override {
    return made([&](void** memory) { return calls_.host_alloc(memory, length, kPortable); }, "hipHostMalloc");
  }
  Status release_pinned(void* memory) override { return check(calls_.host_free(memory), "hipHostFree"); }
  Result<void*> create_stream() override {
    return made([&](void** stream) { return calls_.stream_create(stream, kNonBlocking); }, "hipStreamCreateWithFlags");
  }
  void destroy_stream(void* stream) override { calls_.stream_destroy(stream); }
  Status synchronize(void* stream) override { return check(calls_.stream_synchronize(stream), "hipStreamSynchronize"); }
  Status copy(void* to, const void* from, std::uint64_t length, void* stream) override {
    return check(calls_.copy(to, from, length, kCopyDefault, stream), "hipMemcpyAsync");
  }
  Result<void*> create_event() override {
    return made([&](void** event) { return calls_.event_create(event, kDisableTiming); }, "hipEventCreateWithFlags");
  }
  void destroy_event(void* event) override { calls_.event_destroy(event); }
  Status record(void* event, void* stream) override {
    return check(calls_.event_record(event, stream), "hipEventRecord");
  }
  Result<bool> query(void* event) override {
    const int result = calls_.event_query(event);
    if (result == kNotReady) return false;
    KVF_RETURN_IF_ERROR(check(result, "hipEventQuery"));
    return true;
  }

  Result<std::string> export_memory(const Allocation& allocation) override;
  Result<void*> import_memory(const std::string& handle) override;
  Status end_import(void* memory) override { return check(calls_.ipc_close(memory), "hipIpcCloseMemHandle"); }

 private:
  Status check(int result, const char* call) const {
    if (result == kSuccess) return {};
    const char* name = calls_.error_name(result);
    return {result == kOutOfMemory ? Code::kResourceExhausted : Code::kUnavailable,
            std::string(call) + ": " + (name != nullptr ? name : "HIP error " + std::to_string(result))};
  }
  template <typename Call>
  Result<void*> made(const Call& call, const char* name) const {
    void* out = nullptr;
    KVF_RETURN_IF_ERROR(check(call(&out), name));
    return out;
  }

  const Library library_;
  Calls calls_{};
  int version_ = 0;
  int device_count_ = 0;
};

Status HipApi::start() {
  KVF_RETURN_IF_ERROR(bind_calls(library_, &calls_));
  KVF_RETURN_IF_ERROR(check(calls_.init(0), "hipInit"));
  KVF_RETURN_IF_ERROR(check(calls_.runtime_version(&version_), "hipRuntimeGetVersion"));
  KVF_RETURN_IF_ERROR(check(calls_.device_count(&device_count_), "hipGetDeviceCount"));
  if (device_count_ > 0) return {};
  return {Code::kUnavailable, "the HIP runtime sees no device; check HIP_VISIBLE_DEVICES and access to /dev/kfd"};
}

Result<std::optional<VendorApi::Allocation>> HipApi::inspect(const void* address) {
  void* const at = const_cast<void*>(address);  // NOLINT: the API takes no pointers to const
  Allocation found;
  void* base = nullptr;
  std::size_t length = 0;
  // What has no range is none of HIP's. What has one may still be the host's, by hipHostMalloc, hipHostRegister or
  // hipMallocManaged: only that has an address for the host. (The memory type would tell, too, but its numbers changed
  // between ROCm 5 and 6.)
  if (calls_.address_range(&base, &length, at) != kSuccess) return std::optional<Allocation>();
  void* for_host = nullptr;
  const bool on_host = calls_.pointer_attribute(&for_host, kHostPointer, at) == kSuccess && for_host != nullptr;
  if (on_host) return std::optional<Allocation>();
  KVF_RETURN_IF_ERROR(check(calls_.pointer_attribute(&found.device, kDeviceOrdinal, at), "hipPointerGetAttribute"));
  found.base = reinterpret_cast<std::uint64_t>(base);
  found.length = length;
  return std::optional<Allocation>(found);
}

Result<std::string> HipApi::export_memory(const Allocation& allocation) {
  IpcHandle handle{};
  void* const base = reinterpret_cast<void*>(allocation.base);  // NOLINT: device addresses are numbers to us
  const Status shared = check(calls_.ipc_get(&handle, base), "hipIpcGetMemHandle");
  if (!shared.ok()) {
    return {Code::kUnsupported, "this device memory cannot be shared between processes (" + shared.message() + ")"};
  }
  return std::string(handle.bytes, sizeof handle.bytes);
}

Result<void*> HipApi::import_memory(const std::string& handle) {
  IpcHandle raw{};
  if (handle.size() != sizeof raw.bytes) return {Code::kInvalidArgument, "a HIP memory handle has 64 bytes"};
  std::memcpy(raw.bytes, handle.data(), sizeof raw.bytes);
  return made([&](void** memory) { return calls_.ipc_open(memory, raw, kLazyPeerAccess); }, "hipIpcOpenMemHandle");
}

}  // namespace

Result<std::unique_ptr<DeviceDriver>> load_hip_driver() {
  auto library = Library::open({"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"});
  if (!library.ok()) return library.status().with_context("AMD's HIP runtime is not installed here");
  auto api = std::make_unique<HipApi>(std::move(library).value());
  KVF_RETURN_IF_ERROR(api->start());
  return make_driver(std::move(api));
}

}  // namespace kvferry
