// libcuda.so.1, imitated: see fake_device.h. Like the real one it wants cuInit first, and a current context wherever
// the driver API documents one.
#include <cstring>
#include <string>

#include "fake_device.h"

namespace {

using Address = unsigned long long;  // NOLINT: CUdeviceptr
struct IpcHandle {
  char bytes[64];
};

constexpr int kOk = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kInvalidContext = 201, kNotReady = 600;

bool initialized = false;
thread_local int current[16];
thread_local int depth = 0;

int contexts[fake_device::kDevices];

int check(const char* call, bool wants_context = true) {
  if (fake_device::fails(call)) return 999;
  if (!initialized) return kNotInitialized;
  return wants_context && depth == 0 ? kInvalidContext : kOk;
}

void* pointer(Address address) { return reinterpret_cast<void*>(address); }  // NOLINT

}  // namespace

#define RETURN_IF_BAD(call, wants_context)                                  \
  do {                                                                      \
    if (const int bad = check(call, wants_context); bad != kOk) return bad; \
  } while (0)

extern "C" {

int cuInit(unsigned) {
  if (fake_device::fails("cuInit")) return 999;
  initialized = true;
  return kOk;
}

int cuDriverGetVersion(int* version) {
  *version = 12040;
  return kOk;
}

int cuDeviceGetCount(int* count) {
  RETURN_IF_BAD("cuDeviceGetCount", false);
  *count = fake_device::device_count();
  return kOk;
}

int cuGetErrorName(int error, const char** name) {
  *name = error == kOutOfMemory      ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == kInvalidContext ? "CUDA_ERROR_INVALID_CONTEXT"
                                     : "CUDA_ERROR_UNKNOWN";
  return kOk;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  RETURN_IF_BAD("cuDevicePrimaryCtxRetain", false);
  *context = &contexts[device];
  return kOk;
}

int cuCtxPushCurrent_v2(void* context) {
  RETURN_IF_BAD("cuCtxPushCurrent", false);
  current[depth++] = static_cast<int>(static_cast<int*>(context) - contexts);
  return kOk;
}

int cuCtxPopCurrent_v2(void** context) {
  RETURN_IF_BAD("cuCtxPopCurrent", true);
  *context = &contexts[current[--depth]];
  return kOk;
}

int cuPointerGetAttribute(void* data, int attribute, Address address) {
  RETURN_IF_BAD("cuPointerGetAttribute", false);
  const fake_device::Range found = fake_device::find(address);
  if (found.device < 0) return kInvalidValue;
  if (attribute == 2) *static_cast<unsigned*>(data) = 2;
  if (attribute == 9) *static_cast<int*>(data) = found.device;
  return attribute == 2 || attribute == 9 ? kOk : kInvalidValue;
}

int cuPointerSetAttribute(const void*, int attribute, Address address) {
  RETURN_IF_BAD("cuPointerSetAttribute", true);
  return attribute == 6 && fake_device::find(address).device >= 0 ? kOk : kInvalidValue;
}

int cuMemGetAddressRange_v2(Address* base, std::size_t* length, Address address) {
  RETURN_IF_BAD("cuMemGetAddressRange", false);
  const fake_device::Range found = fake_device::find(address);
  if (found.device < 0) return kInvalidValue;
  *base = found.base;
  *length = found.length;
  return kOk;
}

int cuMemAlloc_v2(Address* address, std::size_t length) {
  RETURN_IF_BAD("cuMemAlloc", true);
  void* const memory = fake_device::allocate(current[depth - 1], length);
  *address = reinterpret_cast<Address>(memory);
  return memory != nullptr ? kOk : kOutOfMemory;
}

int cuMemFree_v2(Address address) {
  RETURN_IF_BAD("cuMemFree", true);
  return fake_device::release(pointer(address)) ? kOk : kInvalidValue;
}

int cuMemHostAlloc(void** memory, std::size_t length, unsigned) {
  RETURN_IF_BAD("cuMemHostAlloc", true);
  *memory = fake_device::allocate_host(length);
  return kOk;
}

int cuMemFreeHost(void* memory) {
  RETURN_IF_BAD("cuMemFreeHost", true);
  return fake_device::release_host(memory) ? kOk : kInvalidValue;
}

int cuMemcpyAsync(Address to, Address from, std::size_t length, void* stream) {
  RETURN_IF_BAD("cuMemcpyAsync", true);
  return fake_device::copy(stream, pointer(to), pointer(from), length) ? kOk : kInvalidValue;
}

int cuStreamCreate(void** stream, unsigned) {
  RETURN_IF_BAD("cuStreamCreate", true);
  *stream = fake_device::create_stream();
  return kOk;
}

int cuStreamDestroy_v2(void* stream) {
  RETURN_IF_BAD("cuStreamDestroy", true);
  fake_device::destroy_stream(stream);
  return kOk;
}

int cuStreamSynchronize(void* stream) {
  RETURN_IF_BAD("cuStreamSynchronize", true);
  fake_device::synchronize(stream);
  return kOk;
}

int cuEventCreate(void** event, unsigned) {
  RETURN_IF_BAD("cuEventCreate", true);
  *event = fake_device::create_event();
  return kOk;
}

int cuEventDestroy_v2(void* event) {
  RETURN_IF_BAD("cuEventDestroy", true);
  fake_device::destroy_event(event);
  return kOk;
}

int cuEventRecord(void* event, void* stream) {
  RETURN_IF_BAD("cuEventRecord", true);
  fake_device::record(event, stream);
  return kOk;
}

int cuEventQuery(void* event) {
  RETURN_IF_BAD("cuEventQuery", false);
  return fake_device::reached(event) ? kOk : kNotReady;
}

int cuIpcGetMemHandle(IpcHandle* handle, Address address) {
  RETURN_IF_BAD("cuIpcGetMemHandle", true);
  const std::string name = fake_device::export_memory(pointer(address));
  std::memset(handle->bytes, 0, sizeof handle->bytes);
  std::memcpy(handle->bytes, name.data(), name.size());
  return name.empty() ? kInvalidValue : kOk;
}

int cuIpcOpenMemHandle_v2(Address* address, IpcHandle handle, unsigned flags) {
  RETURN_IF_BAD("cuIpcOpenMemHandle", true);
  void* const memory = flags == 1 ? fake_device::import_memory(handle.bytes) : nullptr;
  *address = reinterpret_cast<Address>(memory);
  return memory != nullptr ? kOk : kInvalidValue;
}

int cuIpcCloseMemHandle(Address address) {
  RETURN_IF_BAD("cuIpcCloseMemHandle", true);
  return fake_device::end_import(pointer(address)) ? kOk : kInvalidValue;
}

}  // extern "C"
