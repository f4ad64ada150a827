// Makes the pages of fresh shared memory: all of them at once, so that a lack of memory is an error now and not a
// fault in the middle of a copy. Large ranges are made by several threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvferry/status.h"

namespace kvferry {

struct FreshMemory {
  int fd = -1;
  std::byte* data = nullptr;  // the start of the file, mapped shared and writable
  std::uint64_t length = 0;
  std::uint64_t page_bytes = 4096;  // as the file has them by itself
};

// Zeroed, allocated and mapped in this process. With `huge_pages` in huge ones where the kernel can: also where sysfs
// says "never" for shared memory, since Linux 6.1 lets a process ask for a given range (MADV_COLLAPSE). Returns the
// size of the pages that (but for a last part of less than one) all of it got. kResourceExhausted.
Result<std::uint64_t> make_pages(const FreshMemory& memory, bool huge_pages, std::uint64_t threads);
// The threads worth having for that much: half of the cores at most, so that others still run.
std::uint64_t page_making_threads(std::uint64_t length);

// Huge pages that are set aside by the administrator (vm.nr_hugepages) and free: how many bytes.
std::uint64_t reserved_huge_bytes();

}  // namespace kvferry
