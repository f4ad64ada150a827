// libamdhip64.so, imitated: see fake_device.h. A thread has a current device, 0 unless it chose another.
#include <cstring>
#include <string>

#include "fake_device.h"

namespace {

struct IpcHandle {
  char bytes[64];
};

constexpr int kOk = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotReady = 600, kUnknown = 999;

thread_local int current = 0;

std::uintptr_t number(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }
int when(bool good) { return good ? kOk : kInvalidValue; }

}  // namespace

#define RETURN_IF_BAD(call) \
  if (fake_device::fails(call)) return kUnknown

extern "C" {

int hipInit(unsigned) {
  RETURN_IF_BAD("hipInit");
  return kOk;
}

int hipRuntimeGetVersion(int* version) {
  *version = 60300;
  return kOk;
}

int hipGetDeviceCount(int* count) {
  *count = fake_device::device_count();
  return kOk;
}

const char* hipGetErrorName(int error) { return error == kOutOfMemory ? "hipErrorOutOfMemory" : "hipErrorUnknown"; }

int hipGetDevice(int* device) {
  *device = current;
  return kOk;
}

int hipSetDevice(int device) {
  RETURN_IF_BAD("hipSetDevice");
  current = device;
  return kOk;
}

// As the real one, it knows pinned host memory, too: a device and an address for the host.
int hipPointerGetAttribute(void* data, int attribute, void* address) {
  const bool pinned = fake_device::find_host(number(address)).length > 0;
  if (attribute == 4) {
    *static_cast<void**>(data) = pinned ? address : nullptr;
    return when(pinned);
  }
  const fake_device::Range found = pinned ? fake_device::Range{0, 0, 0} : fake_device::find(number(address));
  if (found.device < 0 || attribute != 9) return kInvalidValue;
  *static_cast<int*>(data) = found.device;
  return kOk;
}

int hipMemGetAddressRange(void** base, std::size_t* length, void* address) {
  const fake_device::Range host = fake_device::find_host(number(address));
  const fake_device::Range found = host.length > 0 ? host : fake_device::find(number(address));
  *base = reinterpret_cast<void*>(found.base);  // NOLINT
  *length = found.length;
  return when(found.length > 0);
}

int hipMalloc(void** memory, std::size_t length) {
  RETURN_IF_BAD("hipMalloc");
  *memory = fake_device::allocate(current, length);
  return *memory != nullptr ? kOk : kOutOfMemory;
}

int hipFree(void* memory) { return when(fake_device::release(memory)); }

int hipHostMalloc(void** memory, std::size_t length, unsigned) {
  RETURN_IF_BAD("hipHostMalloc");
  *memory = fake_device::allocate_host(length);
  return kOk;
}

int hipHostFree(void* memory) { return when(fake_device::release_host(memory)); }

int hipMemcpyAsync(void* to, const void* from, std::size_t length, int kind, void* stream) {
  RETURN_IF_BAD("hipMemcpyAsync");
  return when(kind == 4 && fake_device::copy(stream, to, from, length));
}

int hipStreamCreateWithFlags(void** stream, unsigned) {
  *stream = fake_device::create_stream();
  return kOk;
}

int hipStreamDestroy(void* stream) {
  fake_device::destroy_stream(stream);
  return kOk;
}

int hipStreamSynchronize(void* stream) {
  fake_device::synchronize(stream);
  return kOk;
}

int hipEventCreateWithFlags(void** event, unsigned) {
  *event = fake_device::create_event();
  return kOk;
}

int hipEventDestroy(void* event) {
  fake_device::destroy_event(event);
  return kOk;
}

int hipEventRecord(void* event, void* stream) {
  fake_device::record(event, stream);
  return kOk;
}

int hipEventQuery(void* event) { return fake_device::reached(event) ? kOk : kNotReady; }

int hipIpcGetMemHandle(IpcHandle* handle, void* memory) {
  const std::string name = fake_device::export_memory(memory);
  std::memset(handle->bytes, 0, sizeof handle->bytes);
  std::memcpy(handle->bytes, name.data(), name.size());
  return when(!name.empty());
}

int hipIpcOpenMemHandle(void** memory, IpcHandle handle, unsigned) {
  *memory = fake_device::import_memory(handle.bytes);
  return when(*memory != nullptr);
}

int hipIpcCloseMemHandle(void* memory) { return when(fake_device::end_import(memory)); }

}  // extern "C"
