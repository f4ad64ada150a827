// An accelerator for machines that have none: what the three imitated vendor libraries share. Device memory lies in a
// memfd mapping that is not readable for this process at the addresses given out, as real device memory is not; copies
// run on a thread of their own, after a delay that tests set; every call is written down in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace fake_device {

inline constexpr int kDevices = 2;

// What tests may turn, by environment variables read at each call:
//   FAKE_DEVICE_COPY_US   how long a copy takes before its bytes move (default 0)
//   FAKE_DEVICE_FAIL      the name of a call that fails from now on
//   FAKE_DEVICE_COUNT     how many devices there are (default 2)
//   FAKE_DEVICE_LOG       a file that each call's name is appended to
bool fails(const char* call);  // also logs the call
int device_count();

struct Range {
  int device = -1;  // -1: not device memory
  std::uintptr_t base = 0;
  std::size_t length = 0;
};
Range find(std::uintptr_t address);
Range find_host(std::uintptr_t address);  // pinned host memory; length 0: none

void* allocate(int device, std::size_t length);  // nullptr: no memory
bool release(void* memory);
void* allocate_host(std::size_t length);
bool release_host(void* memory);

void* create_stream();
void destroy_stream(void* stream);
bool copy(void* stream, void* to, const void* from, std::size_t length);  // false: an address is not known
void synchronize(void* stream);

void* create_event();
void destroy_event(void* event);
void record(void* event, void* stream);
bool reached(void* event);

// A name of at most 64 characters by which another process opens the same memory; empty: not an allocation's base.
std::string export_memory(void* memory);
void* import_memory(const std::string& name);
bool end_import(void* memory);

}  // namespace fake_device
