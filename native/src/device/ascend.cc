// Names, values and layouts are those of CANN's acl_rt.h (hiascend.com, "AscendCL API"), 8.2 and later. Never run on
// Ascend hardware: tested against a library that imitates it.
#include "device/ascend.h"

#include <array>
#include <map>
#include <mutex>

#include "device/library.h"
#include "device/vendor_api.h"

namespace kvferry {
namespace {

struct Location {
  std::uint32_t id;
  std::int32_t type;
};
struct PointerAttributes {
  Location location;
  std::uint32_t page_size;
  std::uint32_t reserved[4];
};

constexpr int kSuccess = 0, kMemoryExhausted = 207001;  // ACL_ERROR_RT_MEMORY_ALLOCATION
constexpr int kRepeatInitialize = 100002;               // somebody else in this process was first
constexpr int kLocationDevice = 1;                      // ACL_MEM_LOCATION_TYPE_DEVICE
constexpr int kEventComplete = 1;                       // ACL_EVENT_RECORDED_STATUS_COMPLETE
constexpr int kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3;
constexpr int kHugeFirst = 0;          // ACL_MEM_MALLOC_HUGE_FIRST
constexpr std::size_t kKeyBytes = 65;  // of an IPC key, its NUL included
constexpr std::uint64_t kNoPidCheck = 1, kPeerAccess = 1;

struct Calls {
  int (*init)(const char* config);
  int (*device_count)(std::uint32_t* count);
  int (*get_device)(std::int32_t* device);
  int (*set_device)(std::int32_t device);
  const char* (*recent_error)();
  int (*pointer_attributes)(const void* address, PointerAttributes* attributes);
  int (*alloc)(void** memory, std::size_t length, int policy);
  int (*free)(void* memory);
  int (*host_alloc)(void** memory, std::size_t length);
  int (*host_free)(void* memory);
  int (*copy)(void* to, std::size_t room, const void* from, std::size_t length, int kind, void* stream);
  int (*stream_create)(void** stream);
  int (*stream_destroy)(void* stream);
  int (*stream_synchronize)(void* stream);
  int (*event_create)(void** event);
  int (*event_destroy)(void* event);
  int (*event_record)(void* event, void* stream);
  int (*event_query)(void* event, int* status);
  int (*ipc_export)(void* memory, std::size_t length, char* key, std::size_t room, std::uint64_t flags);
  int (*ipc_import)(void** memory, const char* key, std::uint64_t flags);
  int (*ipc_close)(const char* key);
};

Status bind_calls(const Library& library, Calls* calls) {
  KVF_RETURN_IF_ERROR(library.bind(&calls->init, "aclInit"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->device_count, "aclrtGetDeviceCount"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->get_device, "aclrtGetDevice"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->set_device, "aclrtSetDevice"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->recent_error, "aclGetRecentErrMsg"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->pointer_attributes, "aclrtPointerGetAttributes"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->alloc, "aclrtMalloc"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->free, "aclrtFree"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->host_alloc, "aclrtMallocHost"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->host_free, "aclrtFreeHost"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->copy, "aclrtMemcpyAsync"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->stream_create, "aclrtCreateStream"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->stream_destroy, "aclrtDestroyStream"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->stream_synchronize, "aclrtSynchronizeStream"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->event_create, "aclrtCreateEvent"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->event_destroy, "aclrtDestroyEvent"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->event_record, "aclrtRecordEvent"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->event_query, "aclrtQueryEventStatus"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->ipc_export, "aclrtIpcMemGetExportKey"));
  KVF_RETURN_IF_ERROR(library.bind(&calls->ipc_import, "aclrtIpcMemImportByKey"));
  return library.bind(&calls->ipc_close, "aclrtIpcMemClose");
}

class AscendApi final : public VendorApi {
 public:
  explicit AscendApi(Library library) : library_(std::move(library)) {}
  Status start();

  MemoryKind kind() const override { return MemoryKind::kAscend; }
  std::string describe() const override { return "AscendCL"; }
  int device_count() const override { return static_cast<int>(device_count_); }
  Result<void*> enter(int device) override;
  void leave(void* previous) override {
    const auto before = static_cast<std::int32_t>(reinterpret_cast<std::intptr_t>(previous));  // NOLINT: see enter()
    if (before >= 0) calls_.set_device(before);
  }
  Result<std::optional<Allocation>> inspect(const void* address) override;

  Result<void*> allocate(std::uint64_t length) override {
    return made([&](void** memory) { return calls_.alloc(memory, length, kHugeFirst); }, "aclrtMalloc");
  }
  Status release(void* memory) override { return check(calls_.free(memory), "aclrtFree"); }
  Result<void*> allocate_pinned(std::uint64_t length) override {
    return made([&](void** memory) { return calls_.host_alloc(memory, length); }, "aclrtMallocHost");
  }
  Status release_pinned(void* memory) override { return check(calls_.host_free(memory), "aclrtFreeHost"); }
  Result<void*> create_stream() override { return made(calls_.stream_create, "aclrtCreateStream"); }
  void destroy_stream(void* stream) override { calls_.stream_destroy(stream); }
  Status synchronize(void* stream) override {
    return check(calls_.stream_synchronize(stream), "aclrtSynchronizeStream");
  }
  Status copy(void* to, const void* from, std::uint64_t length, void* stream) override;
  Result<void*> create_event() override { return made(calls_.event_create, "aclrtCreateEvent"); }
  void destroy_event(void* event) override { calls_.event_destroy(event); }
  Status record(void* event, void* stream) override {
    return check(calls_.event_record(event, stream), "aclrtRecordEvent");
  }
  Result<bool> query(void* event) override {
    int status = 0;
    KVF_RETURN_IF_ERROR(check(calls_.event_query(event, &status), "aclrtQueryEventStatus"));
    return status == kEventComplete;
  }

  Result<std::string> export_memory(const Allocation& allocation) override;
  Result<void*> import_memory(const std::string& handle) override;
  Status end_import(void* memory) override;

 private:
  Status check(int result, const char* call) const {
    if (result == kSuccess) return {};
    const char* text = calls_.recent_error();
    return {result == kMemoryExhausted ? Code::kResourceExhausted : Code::kUnavailable,
            std::string(call) + ": ACL error " + std::to_string(result) + (text != nullptr ? ": " : "") +
                (text != nullptr ? text : "")};
  }
  template <typename Call>
  Result<void*> made(const Call& call, const char* name) const {
    void* out = nullptr;
    KVF_RETURN_IF_ERROR(check(call(&out), name));
    return out;
  }

  const Library library_;
  Calls calls_{};
  std::uint32_t device_count_ = 0;
  std::mutex mutex_;
  std::map<void*, std::string> imported_;  // guarded by mutex_: AscendCL ends an import by its key
};

Status AscendApi::start() {
  KVF_RETURN_IF_ERROR(bind_calls(library_, &calls_));
  const int initialized = calls_.init(nullptr);
  if (initialized != kRepeatInitialize) KVF_RETURN_IF_ERROR(check(initialized, "aclInit"));
  KVF_RETURN_IF_ERROR(check(calls_.device_count(&device_count_), "aclrtGetDeviceCount"));
  if (device_count_ > 0) return {};
  return {Code::kUnavailable, "AscendCL sees no device; check ASCEND_RT_VISIBLE_DEVICES"};
}

// A thread that never chose a device has none; then there is nothing to restore, which -1 says.
Result<void*> AscendApi::enter(int device) {
  std::int32_t previous = -1;
  if (calls_.get_device(&previous) != kSuccess) previous = -1;
  KVF_RETURN_IF_ERROR(check(calls_.set_device(device), "aclrtSetDevice"));
  return reinterpret_cast<void*>(static_cast<std::intptr_t>(previous));  // NOLINT: a number in a pointer's clothes
}

// AscendCL does not tell where an allocation begins and ends: it is taken to begin at `address`, of unknown length (0).
Result<std::optional<VendorApi::Allocation>> AscendApi::inspect(const void* address) {
  PointerAttributes attributes{};
  const bool known = calls_.pointer_attributes(address, &attributes) == kSuccess;
  if (!known || attributes.location.type != kLocationDevice) return std::optional<Allocation>();
  Allocation found;
  found.device = static_cast<int>(attributes.location.id);
  found.base = reinterpret_cast<std::uint64_t>(address);
  return std::optional<Allocation>(found);
}

Status AscendApi::copy(void* to, const void* from, std::uint64_t length, void* stream) {
  KVF_ASSIGN_OR_RETURN(const auto target, inspect(to));
  KVF_ASSIGN_OR_RETURN(const auto source, inspect(from));
  const int from_device = target ? kDeviceToDevice : kDeviceToHost;
  return check(calls_.copy(to, length, from, length, source ? from_device : kHostToDevice, stream), "aclrtMemcpyAsync");
}

Result<std::string> AscendApi::export_memory(const Allocation& allocation) {
  std::array<char, kKeyBytes> key{};
  void* const base = reinterpret_cast<void*>(allocation.base);  // NOLINT: device addresses are numbers to us
  const Status shared =
      check(calls_.ipc_export(base, allocation.length, key.data(), key.size(), kNoPidCheck), "aclrtIpcMemGetExportKey");
  if (!shared.ok()) {
    return {Code::kUnsupported, "this device memory cannot be shared between processes (" + shared.message() + ")"};
  }
  key.back() = '\0';
  return std::string(key.data());
}

Result<void*> AscendApi::import_memory(const std::string& handle) {
  if (handle.empty() || handle.size() >= kKeyBytes) {
    return {Code::kInvalidArgument, "an Ascend memory key has 1 to 64 characters"};
  }
  KVF_ASSIGN_OR_RETURN(
      void* const memory,
      made([&](void** out) { return calls_.ipc_import(out, handle.c_str(), kPeerAccess); }, "aclrtIpcMemImportByKey"));
  const std::lock_guard lock(mutex_);
  imported_[memory] = handle;
  return memory;
}

Status AscendApi::end_import(void* memory) {
  std::string key;
  {
    const std::lock_guard lock(mutex_);
    const auto found = imported_.find(memory);
    if (found == imported_.end()) return {Code::kNotFound, "this memory was not imported"};
    key = found->second;
    imported_.erase(found);
  }
  return check(calls_.ipc_close(key.c_str()), "aclrtIpcMemClose");
}

}  // namespace

Result<std::unique_ptr<DeviceDriver>> load_ascend_driver() {
  auto library = Library::open({"libascendcl.so"});
  if (!library.ok()) return library.status().with_context("Huawei's CANN runtime is not installed here");
  auto api = std::make_unique<AscendApi>(std::move(library).value());
  KVF_RETURN_IF_ERROR(api->start());
  return make_driver(std::move(api));
}

}  // namespace kvferry
