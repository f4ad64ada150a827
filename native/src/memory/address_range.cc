#include "memory/address_range.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry {
namespace {

constexpr std::uint64_t kCollapseStepBytes = 16u << 20;  // how much is done between two looks at the clock
constexpr int kMadviseCollapse = 25;                     // MADV_COLLAPSE; older C libraries do not name it

struct HugeRange {  // whole huge pages
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

HugeRange huge_range(const void* data, std::uint64_t length) {
  const auto begin = reinterpret_cast<std::uint64_t>(data);
  return {(begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes,
          (begin + length) / kHugePageBytes * kHugePageBytes};
}

void* at(std::uint64_t address) { return reinterpret_cast<void*>(address); }  // NOLINT: part of the caller's range

struct Mapping {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool readable = false;
  bool writable = false;
};

// "7f0c1000-7f0c2000 rw-p ..."
std::optional<Mapping> parse_mapping(std::string_view line) {
  Mapping mapping;
  const char* const last = line.data() + line.size();
  auto [dash, error] = std::from_chars(line.data(), last, mapping.begin, 16);
  if (error != std::errc{} || dash == last || *dash != '-') return std::nullopt;
  auto [space, error2] = std::from_chars(dash + 1, last, mapping.end, 16);
  if (error2 != std::errc{} || last - space < 3) return std::nullopt;
  mapping.readable = space[1] == 'r';
  mapping.writable = space[2] == 'w';
  return mapping;
}

Status not_usable(std::uint64_t at, std::string_view why) {
  return {Code::kInvalidArgument, "address " + address_text(at) + " of this process is not " + std::string(why)};
}

// Without /proc: tells mapped from unmapped, but not the protection.
Status check_resident(std::uint64_t begin, std::uint64_t end) {
  constexpr std::uint64_t kChunkBytes = 1u << 30;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident(kChunkBytes / page);
  for (std::uint64_t at = begin / page * page; at < end; at += kChunkBytes) {
    const std::uint64_t length = std::min(kChunkBytes, end - at);
    if (::mincore(reinterpret_cast<void*>(at), length, resident.data()) != 0) return not_usable(at, "mapped");
  }
  return {};
}

}  // namespace

std::string address_text(std::uint64_t address) {
  std::string out(16, '0');
  const auto [end, error] = std::to_chars(out.data(), out.data() + out.size(), address, 16);
  out.resize(static_cast<std::size_t>(end - out.data()));
  return "0x" + out;
}

Status check_mapped(const void* data, std::uint64_t length, bool writable) {
  const auto begin = reinterpret_cast<std::uint64_t>(data);
  if (data == nullptr || length == 0 || length > UINT64_MAX - begin) {
    return {Code::kInvalidArgument, "a null, empty or wrapped address range"};
  }
  const std::uint64_t end = begin + length;
  std::ifstream maps("/proc/self/maps");
  if (!maps) return check_resident(begin, end);

  std::uint64_t covered = begin;  // everything below is known to be good; the file is sorted by address
  std::string line;
  while (covered < end && std::getline(maps, line)) {
    const auto mapping = parse_mapping(line);
    if (!mapping || mapping->end <= covered) continue;
    if (mapping->begin > covered) break;
    if (!mapping->readable) return not_usable(covered, "readable");
    if (writable && !mapping->writable) return not_usable(covered, "writable");
    covered = mapping->end;
  }
  return covered >= end ? Status() : not_usable(covered, "mapped");
}

void advise_huge_pages(void* data, std::uint64_t length) {
  const HugeRange range = huge_range(data, length);
  if (range.first >= range.last) return;
  // Refused by kernels without transparent huge pages; then ordinary pages serve as well.
  [[maybe_unused]] const int ignored = ::madvise(at(range.first), range.last - range.first, MADV_HUGEPAGE);
}

bool collapse_into_huge_pages(void* data, std::uint64_t length) {
  int error = 0;
  for (int attempt = 0; attempt < 3; ++attempt) {
    error = ::madvise(data, length, kMadviseCollapse) == 0 ? 0 : errno;
    if (error != EAGAIN && error != EINTR) break;  // EAGAIN: pages were in use by the kernel itself just then
  }
  return error == 0;
}

void collapse_into_huge_pages(void* data, std::uint64_t length, milliseconds budget) {
  const HugeRange range = huge_range(data, length);
  const Deadline deadline = Clock::now() + budget;
  for (std::uint64_t begin = range.first; begin < range.last && Clock::now() < deadline; begin += kCollapseStepBytes) {
    // Parts that nobody has touched, or that the kernel has no huge page for, stay as they are.
    (void)collapse_into_huge_pages(at(begin), std::min(kCollapseStepBytes, range.last - begin));
  }
}

}  // namespace kvferry
