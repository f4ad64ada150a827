#include "memory/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "memory/address_range.h"
#include "memory/page_maker.h"

#ifndef MFD_HUGETLB
#define MFD_HUGETLB 0x0004U
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

namespace kvferry {
namespace {

std::uint64_t page_size() { return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)); }

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

void unmap_between(std::byte* begin, std::byte* end) {
  if (begin < end) ::munmap(begin, static_cast<std::size_t>(end - begin));
}

// Huge pages can be mapped as such only at multiples of their size, and mmap() does not choose such an address by
// itself while they are switched off for shared memory at large. So: room first, then the memory in an aligned part of
// it, then what is left over at both ends goes.
Result<std::byte*> map_shared(int fd, std::uint64_t length, bool writable) {
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  const auto failure = [&] {
    const Code code = errno == EPERM || errno == EACCES ? Code::kPermissionDenied : Code::kResourceExhausted;
    return errno_status(code, "cannot map " + std::to_string(length) + " bytes of shared memory", errno);
  };
  const std::uint64_t alignment = length >= kHugePageBytes ? kHugePageBytes : page_size();
  const std::uint64_t mapped = round_up(length, page_size());
  const std::uint64_t room_bytes = mapped + alignment - page_size();
  void* const room = ::mmap(nullptr, room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return failure();
  auto* const begin = static_cast<std::byte*>(room);
  const auto address = reinterpret_cast<std::uintptr_t>(room);
  std::byte* const data = begin + (round_up(address, alignment) - address);
  const bool done = ::mmap(data, length, protection, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
  const Status why = done ? Status() : failure();
  unmap_between(begin, done ? data : begin + room_bytes);
  if (!done) return why;
  unmap_between(data + mapped, begin + room_bytes);
  return data;
}

// What the kernel thinks it could give without swapping, and swap; nullopt if it does not tell.
std::optional<std::uint64_t> available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  std::uint64_t kib = 0, sum = 0;
  int found = 0;
  while (file >> name >> kib) {
    std::getline(file, unit);
    if (name != "MemAvailable:" && name != "SwapFree:") continue;
    sum += kib << 10;
    ++found;
  }
  return found == 2 ? std::optional(sum) : std::nullopt;
}

// The kernel would promise the memory all the same, and kill some process when it comes to give it.
Status check_available(std::uint64_t length) {
  const auto available = available_bytes();
  if (!available || length <= *available) return {};
  return {Code::kResourceExhausted, "an arena of " + std::to_string(length) + " bytes was asked for, but only " +
                                        std::to_string(*available) + " bytes of memory are available"};
}

}  // namespace

Result<std::uint64_t> sealed_size(int fd) {
  struct stat info {};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return {Code::kProtocolError, "the descriptor is not a memfd that is sealed against shrinking"};
  }
  if (::fstat(fd, &info) != 0) return errno_status(Code::kInternal, "fstat of shared memory", errno);
  return static_cast<std::uint64_t>(info.st_size);
}

Result<Arena> Arena::create_file(std::uint64_t length, const char* label, const ArenaOptions& options, bool reserved) {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (reserved ? MFD_HUGETLB | MFD_HUGE_2MB : 0U);
  UniqueFd fd(::memfd_create(label, flags));
  if (!fd.valid()) return errno_status(Code::kResourceExhausted, "memfd_create", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(length)) != 0) {
    return errno_status(Code::kResourceExhausted, "cannot size shared memory", errno);
  }
  KVF_ASSIGN_OR_RETURN(std::byte* const data, map_shared(fd.get(), length, true));
  Arena arena(std::move(fd), data, length);
  if (const Status placed = place_memory(data, length, options.placement); !placed.ok()) {
    log_event(LogLevel::kWarning, "arena_not_placed", {{"arena", label}, {"reason", placed}});
  }
  if (options.huge_pages && !reserved) advise_huge_pages(data, length);  // heeded if shmem_enabled is "advise"
  const FreshMemory fresh{arena.fd(), data, length, reserved ? kHugePageBytes : page_size()};
  KVF_ASSIGN_OR_RETURN(arena.page_bytes_, make_pages(fresh, options.huge_pages, page_making_threads(length)));
  if (::fcntl(arena.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return errno_status(Code::kInternal, "cannot seal shared memory", errno);
  }
  return arena;
}

Result<Arena> Arena::create(std::uint64_t length, std::string_view name, const ArenaOptions& options) {
  if (length == 0 || length > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()) - kHugePageBytes) {
    return {Code::kInvalidArgument, "an arena of " + std::to_string(length) + " bytes"};
  }
  const std::string label("kvferry:" + std::string(name.substr(0, 200)));
  const std::uint64_t whole = round_up(length, kHugePageBytes);
  if (options.huge_pages && length >= kHugePageBytes && whole <= reserved_huge_bytes()) {
    auto arena = create_file(whole, label.c_str(), options, true);
    if (arena.ok()) return arena;  // else someone else took them, or a cgroup keeps us from them
  }
  KVF_RETURN_IF_ERROR(check_available(length));
  return create_file(length, label.c_str(), options, false);
}

Result<Arena> Arena::map(UniqueFd fd, std::uint64_t length, bool writable) {
  KVF_ASSIGN_OR_RETURN(const std::uint64_t size, sealed_size(fd.get()));
  if (length == 0 || size != length) {
    return {Code::kProtocolError,
            "shared memory of " + std::to_string(size) + " bytes was announced with " + std::to_string(length)};
  }
  KVF_ASSIGN_OR_RETURN(std::byte* const data, map_shared(fd.get(), length, writable));
  return Arena(std::move(fd), data, length);
}

Arena::Arena(Arena&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      length_(std::exchange(other.length_, 0)),
      page_bytes_(other.page_bytes_) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this == &other) return *this;
  unmap();
  fd_ = std::move(other.fd_);
  data_ = std::exchange(other.data_, nullptr);
  length_ = std::exchange(other.length_, 0);
  page_bytes_ = other.page_bytes_;
  return *this;
}

Arena::~Arena() { unmap(); }

void Arena::discard() {
  // If the kernel refuses, the memory goes when the last process lets go of it.
  [[maybe_unused]] const int ignored =
      ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(length_));
}

void Arena::unmap() {
  if (data_ != nullptr) ::munmap(data_, length_);
  data_ = nullptr;
}

}  // namespace kvferry
