#include "memory/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string>
#include <utility>

#include "memory/address_range.h"

namespace kvferry {
namespace {

Result<std::byte*> map_shared(int fd, std::uint64_t length, bool writable) {
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const data = ::mmap(nullptr, length, protection, MAP_SHARED, fd, 0);
  if (data != MAP_FAILED) return static_cast<std::byte*>(data);
  const Code code = errno == EPERM || errno == EACCES ? Code::kPermissionDenied : Code::kResourceExhausted;
  return errno_status(code, "cannot map " + std::to_string(length) + " bytes of shared memory", errno);
}

// In steps: a signal makes the kernel give up a step and undo it, so with a profiling timer a long one would never end.
int allocate_pages(int fd, off_t size) {
  constexpr off_t kStepBytes = 16 << 20;
  for (off_t offset = 0; offset < size;) {
    if (::fallocate(fd, 0, offset, std::min(kStepBytes, size - offset)) == 0) {
      offset += kStepBytes;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
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

Result<Arena> Arena::create(std::uint64_t length, std::string_view name, bool huge_pages) {
  if (length == 0 || length > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max())) {
    return {Code::kInvalidArgument, "an arena of " + std::to_string(length) + " bytes"};
  }
  const std::string label("kvferry:" + std::string(name.substr(0, 200)));
  UniqueFd fd(::memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return errno_status(Code::kResourceExhausted, "memfd_create", errno);
  const auto size = static_cast<off_t>(length);
  const std::string what = "cannot allocate " + std::to_string(length) + " bytes of shared memory";
  if (::ftruncate(fd.get(), size) != 0) return errno_status(Code::kResourceExhausted, what, errno);
  KVF_ASSIGN_OR_RETURN(std::byte* const data, map_shared(fd.get(), length, true));
  Arena arena(std::move(fd), data, length);
  if (huge_pages) advise_huge_pages(data, length);  // before the pages are made
  if (const int error = allocate_pages(arena.fd(), size); error != 0) {
    return errno_status(Code::kResourceExhausted, what, error);
  }
  if (::fcntl(arena.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return errno_status(Code::kInternal, "cannot seal shared memory", errno);
  }
  return arena;
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
    : fd_(std::move(other.fd_)), data_(std::exchange(other.data_, nullptr)), length_(std::exchange(other.length_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this == &other) return *this;
  unmap();
  fd_ = std::move(other.fd_);
  data_ = std::exchange(other.data_, nullptr);
  length_ = std::exchange(other.length_, 0);
  return *this;
}

Arena::~Arena() { unmap(); }

void Arena::unmap() {
  if (data_ != nullptr) ::munmap(data_, length_);
  data_ = nullptr;
}

}  // namespace kvferry
