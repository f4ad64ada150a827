// libascendcl.so, imitated: see fake_device.h. It wants the direction of each copy, and ends imports by their key.
#include <cstring>
#include <map>
#include <string>

#include "fake_device.h"

namespace {

struct PointerAttributes {
  std::uint32_t id;
  std::int32_t type;
  std::uint32_t page_size;
  std::uint32_t reserved[4];
};

constexpr int kOk = 0, kRepeatInitialize = 100002, kInvalid = 107000, kOutOfMemory = 207001, kUnknown = 500000;

bool initialized = false;
thread_local int current = -1;
std::map<std::string, void*> imported;  // tests import from one thread

bool on_device(const void* pointer) { return fake_device::find(reinterpret_cast<std::uintptr_t>(pointer)).device >= 0; }
int when(bool good) { return good ? kOk : kInvalid; }

}  // namespace

extern "C" {

int aclInit(const char*) {
  if (fake_device::fails("aclInit")) return kUnknown;
  const bool again = initialized;
  initialized = true;
  return again ? kRepeatInitialize : kOk;
}

int aclrtGetDeviceCount(std::uint32_t* count) {
  *count = static_cast<std::uint32_t>(fake_device::device_count());
  return kOk;
}

int aclrtGetDevice(std::int32_t* device) {
  *device = current;
  return when(current >= 0);
}

int aclrtSetDevice(std::int32_t device) {
  current = device;
  return kOk;
}

const char* aclGetRecentErrMsg() { return "imitated failure"; }

int aclrtPointerGetAttributes(const void* address, PointerAttributes* attributes) {
  const fake_device::Range found = fake_device::find(reinterpret_cast<std::uintptr_t>(address));
  attributes->type = found.device >= 0 ? 1 : 2;
  attributes->id = found.device >= 0 ? static_cast<std::uint32_t>(found.device) : 0;
  return kOk;
}

int aclrtMalloc(void** memory, std::size_t length, int) {
  if (fake_device::fails("aclrtMalloc")) return kOutOfMemory;
  *memory = fake_device::allocate(current, length);
  return *memory != nullptr ? kOk : kOutOfMemory;
}

int aclrtFree(void* memory) { return when(fake_device::release(memory)); }

int aclrtMallocHost(void** memory, std::size_t length) {
  *memory = fake_device::allocate_host(length);
  return kOk;
}

int aclrtFreeHost(void* memory) { return when(fake_device::release_host(memory)); }

int aclrtMemcpyAsync(void* to, std::size_t room, const void* from, std::size_t length, int kind, void* stream) {
  if (fake_device::fails("aclrtMemcpyAsync")) return kUnknown;
  const int direction = (on_device(from) ? 2 : 0) + (on_device(to) ? 1 : 0);  // H2H 0, H2D 1, D2H 2, D2D 3
  return when(kind == direction && room >= length && fake_device::copy(stream, to, from, length));
}

int aclrtCreateStream(void** stream) {
  *stream = fake_device::create_stream();
  return kOk;
}

int aclrtDestroyStream(void* stream) {
  fake_device::destroy_stream(stream);
  return kOk;
}

int aclrtSynchronizeStream(void* stream) {
  fake_device::synchronize(stream);
  return kOk;
}

int aclrtCreateEvent(void** event) {
  *event = fake_device::create_event();
  return kOk;
}

int aclrtDestroyEvent(void* event) {
  fake_device::destroy_event(event);
  return kOk;
}

int aclrtRecordEvent(void* event, void* stream) {
  fake_device::record(event, stream);
  return kOk;
}

int aclrtQueryEventStatus(void* event, int* status) {
  *status = fake_device::reached(event) ? 1 : 0;
  return kOk;
}

int aclrtIpcMemGetExportKey(void* memory, std::size_t length, char* key, std::size_t room, std::uint64_t flags) {
  const std::string name = fake_device::export_memory(memory);
  if (name.empty() || room != 65 || flags != 1 || length == 0) return kInvalid;
  std::strncpy(key, name.c_str(), room);
  return kOk;
}

int aclrtIpcMemImportByKey(void** memory, const char* key, std::uint64_t) {
  *memory = fake_device::import_memory(key);
  if (*memory != nullptr) imported[key] = *memory;
  return when(*memory != nullptr);
}

int aclrtIpcMemClose(const char* key) {
  const auto found = imported.find(key);
  if (found == imported.end()) return kInvalid;
  fake_device::end_import(found->second);
  imported.erase(found);
  return kOk;
}

}  // extern "C"
