// Names, values and layouts are those of the CUDA driver API reference (docs.nvidia.com/cuda/cuda-driver-api), which
// keeps them binary compatible; nothing of the toolkit is needed to build this.
#include "device/cuda.h"

#include <cstring>
#include <mutex>
#include <vector>

#include "device/library.h"
#include "device/vendor_api.h"

namespace kvferry {
namespace {

using Address = unsigned long long;  // NOLINT: CUdeviceptr
struct IpcHandle {
  char bytes[64];
};

constexpr int kSuccess = 0, kOutOfMemory = 2, kNotReady = 600;
constexpr int kMemoryType = 2, kSyncMemops = 6, kDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_...
constexpr unsigned kTypeDevice = 2;                                  // CU_MEMORYTYPE_DEVICE
constexpr unsigned kNonBlocking = 1;                                 // CU_STREAM_NON_BLOCKING
constexpr unsigned kDisableTiming = 2;                               // CU_EVENT_DISABLE_TIMING
constexpr unsigned kPortable = 1;                                    // CU_MEMHOSTALLOC_PORTABLE
constexpr unsigned kLazyPeerAccess = 1;                              // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

struct Calls {
  int (*init)(unsigned flags);
  int (*driver_version)(int* version);
  int (*device_count)(int* count);
  int (*error_name)(int error, const char** name);
  int (*retain_context)(void** context, int device);
  int (*push_context)(void* context);
  int (*pop_context)(void** context);
  int (*pointer_attribute)(void* data, int attribute, Address address);
  int (*set_pointer_attribute)(const void* value, int attribute, Address address);
  int (*address_range)(Address* base, std::size_t* length, Address address);
  int (*alloc)(Address* address, std::size_t length);
  int (*free)(Address address);
  int (*host_alloc)(void** memory, std::size_t length, unsigned flags);
  int (*host_free)(void* memory);
  int (*copy)(Address to, Address from, std::size_t length, void* stream);
  int (*stream_create)(void** stream, unsigned flags);
  int (*stream_destroy)(void* stream);
  int (*stream_synchronize)(void* stream);
  int (*event_create)(void** event, unsigned flags);
  int (*event_destroy)(void* event);
  int (*event_record)(void* event, void* stream);
  int (*event_query)(void* event);
  int (*ipc_get)(IpcHandle* handle, Address address);
  int (*ipc_open)(Address* address, IpcHandle handle, unsigned flags);
  int (*ipc_close)(Address address);
};

Status bind_calls(const Library& library, Calls* calls) {
  KVF_RETURN_IF_ERROR(library.bind(&calls->init, "cuInit"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->driver_version, "cuDriverGetVersion"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->device_count, "cuDeviceGetCount"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->error_name, "cuGetErrorName"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->retain_context, "cuDevicePrimaryCtxRetain"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->push_context, "cuCtxPushCurrent_v2"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->pop_context, "cuCtxPopCurrent_v2"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->pointer_attribute, "cuPointerGetAttribute"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->set_pointer_attribute, "cuPointerSetAttribute"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->address_range, "cuMemGetAddressRange_v2"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->alloc, "cuMemAlloc_v2"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->free, "cuMemFree_v2"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->host_alloc, "cuMemHostAlloc"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->host_free, "cuMemFreeHost"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->copy, "cuMemcpyAsync"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->stream_create, "cuStreamCreate"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->stream_destroy, "cuStreamDestroy_v2"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->stream_synchronize, "cuStreamSynchronize"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->event_create, "cuEventCreate"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->event_destroy, "cuEventDestroy_v2"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->event_record, "cuEventRecord"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->event_query, "cuEventQuery"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->ipc_get, "cuIpcGetMemHandle"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->ipc_open, "cuIpcOpenMemHandle_v2"));
  return library.bind(&calls->ipc_close, "cuIpcCloseMemHandle");
}

Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }  // NOLINT: one address space
void* pointer_of(Address address) { return reinterpret_cast<void*>(address); }          // NOLINT

class CudaApi final : public VendorApi {
 public:
  explicit CudaApi(Library library) : library_(std::move(library)) {}
  Status start();

  MemoryKind kind() const override { return MemoryKind::kCuda; }
  std::string describe() const override {
    return "CUDA driver " + std::to_string(version_ / 1000) + "." + std::to_string(version_ % 1000 / 10);
  }
  int device_count() const override { return static_cast<int>(contexts_.size()); }
  Result<void*> enter(int device) override;
  void leave(void*) override {
    void* ours = nullptr;
    calls_.pop_context(&ours);
  }
  Result<std::optional<Allocation>> inspect(const void* address) override;

  Result<void*> allocate(std::uint64_t length) override {
    Address address = 0;
    KVF_RETURN_IF_ERROR(check(calls_.alloc(&address, length), "cuMemAlloc"));
    return pointer_of(address);
  }
  Status release(void* memory) override { return check(calls_.free(address_of(memory)), "cuMemFree"); }
  Result<void*> allocate_pinned(std::uint64_t length) override {
    void* memory = nullptr;
    KVF_RETURN_IF_ERROR(check(calls_.host_alloc(&memory, length, kPortable), "cuMemHostAlloc"));
    return memory;
  }
  Status release_pinned(void* memory) override { return check(calls_.host_free(memory), "cuMemFreeHost"); }

  Result<void*> create_stream() override {
    void* stream = nullptr;
    KVF_RETURN_IF_ERROR(check(calls_.stream_create(&stream, kNonBlocking), "cuStreamCreate"));
    return stream;
  }
  void destroy_stream(void* stream) override { calls_.stream_destroy(stream); }
  Status synchronize(void* stream) override { return check(calls_.stream_synchronize(stream), "cuStreamSynchronize"); }
  Status copy(void* to, const void* from, std::uint64_t length, void* stream) override {
    return check(calls_.copy(address_of(to), address_of(from), length, stream), "cuMemcpyAsync");
  }
  Result<void*> create_event() override {
    void* event = nullptr;
    KVF_RETURN_IF_ERROR(check(calls_.event_create(&event, kDisableTiming), "cuEventCreate"));
    return event;
  }
  void destroy_event(void* event) override { calls_.event_destroy(event); }
  Status record(void* event, void* stream) override {
    return check(calls_.event_record(event, stream), "cuEventRecord");
  }
  Result<bool> query(void* event) override {
    const int result = calls_.event_query(event);
    if (result == kNotReady) return false;
    KVF_RETURN_IF_ERROR(check(result, "cuEventQuery"));
    return true;
  }

  Result<std::string> export_memory(const Allocation& allocation) override;
  Result<void*> import_memory(const std::string& handle) override;
  Status end_import(void* memory) override {
    return check(calls_.ipc_close(address_of(memory)), "cuIpcCloseMemHandle");
  }

 private:
  Status check(int result, const char* call) const;

  const Library library_;
  Calls calls_{};
  int version_ = 0;
  std::mutex mutex_;             // guards what follows
  std::vector<void*> contexts_;  // by device; retained for the life of the process, as the runtime's are
};

Status CudaApi::check(int result, const char* call) const {
  if (result == kSuccess) return {};
  const char* name = nullptr;
  calls_.error_name(result, &name);
  return {result == kOutOfMemory ? Code::kResourceExhausted : Code::kUnavailable,
          std::string(call) + ": " + (name != nullptr ? name : "CUDA error " + std::to_string(result))};
}

Status CudaApi::start() {
  KVF_RETURN_IF_ERROR(bind_calls(library_, &calls_));
  KVF_RETURN_IF_ERROR(check(calls_.init(0), "cuInit"));
  KVF_RETURN_IF_ERROR(check(calls_.driver_version(&version_), "cuDriverGetVersion"));
  int count = 0;
  KVF_RETURN_IF_ERROR(check(calls_.device_count(&count), "cuDeviceGetCount"));
  if (count <= 0) return {Code::kUnavailable, "the CUDA driver sees no device; check CUDA_VISIBLE_DEVICES"};
  contexts_.resize(static_cast<std::size_t>(count));
  return {};
}

Result<void*> CudaApi::enter(int device) {
  void* context = nullptr;
  {
    const std::lock_guard lock(mutex_);
    void*& slot = contexts_[static_cast<std::size_t>(device)];
    if (slot == nullptr) {
      KVF_RETURN_IF_ERROR(check(calls_.retain_context(&slot, device), "cuDevicePrimaryCtxRetain"));
    }
    context = slot;
  }
  KVF_RETURN_IF_ERROR(check(calls_.push_context(context), "cuCtxPushCurrent"));
  return context;
}

Result<std::optional<VendorApi::Allocation>> CudaApi::inspect(const void* address) {
  const Address at = address_of(address);
  unsigned type = 0;
  // An address that CUDA has never seen is an error to it, and to us the answer "not mine".
  const bool known = calls_.pointer_attribute(&type, kMemoryType, at) == kSuccess;
  if (!known || type != kTypeDevice) return std::optional<Allocation>();
  Allocation found;
  KVF_RETURN_IF_ERROR(check(calls_.pointer_attribute(&found.device, kDeviceOrdinal, at), "cuPointerGetAttribute"));
  Address base = 0;
  std::size_t length = 0;
  KVF_RETURN_IF_ERROR(check(calls_.address_range(&base, &length, at), "cuMemGetAddressRange"));
  found.base = base;
  found.length = length;
  return std::optional<Allocation>(found);
}

Result<std::string> CudaApi::export_memory(const Allocation& allocation) {
  // Synchronous copies to this memory are then complete when their call returns, for readers in other processes, too.
  const unsigned on = 1;
  KVF_RETURN_IF_ERROR(check(calls_.set_pointer_attribute(&on, kSyncMemops, allocation.base), "cuPointerSetAttribute"));
  IpcHandle handle{};
  const Status shared = check(calls_.ipc_get(&handle, allocation.base), "cuIpcGetMemHandle");
  if (!shared.ok()) {
    return {Code::kUnsupported, "this device memory cannot be shared between processes (" + shared.message() +
                                    "): that of cudaMallocAsync and of expandable segments cannot"};
  }
  return std::string(handle.bytes, sizeof handle.bytes);
}

Result<void*> CudaApi::import_memory(const std::string& handle) {
  IpcHandle raw{};
  if (handle.size() != sizeof raw.bytes) return {Code::kInvalidArgument, "a CUDA memory handle has 64 bytes"};
  std::memcpy(raw.bytes, handle.data(), sizeof raw.bytes);
  Address address = 0;
  KVF_RETURN_IF_ERROR(check(calls_.ipc_open(&address, raw, kLazyPeerAccess), "cuIpcOpenMemHandle"));
  return pointer_of(address);
}

}  // namespace

Result<std::unique_ptr<DeviceDriver>> load_cuda_driver() {
  auto library = Library::open({"libcuda.so.1"});
  if (!library.ok()) return library.status().with_context("NVIDIA's driver is not installed here");
  auto api = std::make_unique<CudaApi>(std::move(library).value());
  KVF_RETURN_IF_ERROR(api->start());
  return make_driver(std::move(api));
}

}  // namespace kvferry
