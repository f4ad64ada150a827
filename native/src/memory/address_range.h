// Checks and advice about ranges of this process's own address space.
#pragma once

#include <cstdint>
#include <string>

#include "kvferry/status.h"
#include "kvferry/types.h"

namespace kvferry {

inline constexpr std::uint64_t kHugePageBytes = 2u << 20;

// OK if every page of [data, data + length) is mapped readable (and writable if asked); else kInvalidArgument.
// A snapshot: the caller promises not to unmap it while it is registered.
Status check_mapped(const void* data, std::uint64_t length, bool writable);

// MADV_HUGEPAGE for the whole huge pages inside the range. Advice only: failures are ignored.
void advise_huge_pages(void* data, std::uint64_t length);

// Joins the pages that are there already into huge ones, contents kept (MADV_COLLAPSE, Linux 6.1): another process
// copies from huge pages two to three times as fast. True if all of [data, data + length), which is whole huge pages,
// is in such now.
bool collapse_into_huge_pages(void* data, std::uint64_t length);
// The whole huge pages inside the range, as far as `budget` lasts; the kernel then goes on by itself, slowly.
void collapse_into_huge_pages(void* data, std::uint64_t length, milliseconds budget);

std::string address_text(std::uint64_t address);  // "0x7f0c10002000"

// offset + length <= limit, without overflow.
constexpr bool range_fits(std::uint64_t offset, std::uint64_t length, std::uint64_t limit) {
  return offset <= limit && length <= limit - offset;
}

}  // namespace kvferry
