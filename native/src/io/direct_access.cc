#include "io/direct_access.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

namespace kvferry {
namespace {

constexpr std::uint64_t kLargestUnit = 64u << 10;
constexpr unsigned kStatxDioAlign = 0x2000;      // STATX_DIOALIGN, Linux 6.1
constexpr std::size_t kDioMemAlignPlace = 0x98;  // stx_dio_mem_align; stx_dio_offset_align follows

struct FileSystem {
  long magic;
  std::string_view name;
  bool in_memory;
};
constexpr FileSystem kFileSystems[] = {
    {0xEF53, "ext4", false},     {0x58465342, "xfs", false},  {0x9123683E, "btrfs", false},
    {0x01021994, "tmpfs", true}, {0x858458f6, "ramfs", true}, {0x794c7630, "overlay", false},
    {0x6969, "nfs", false},      {0x2fc12fc1, "zfs", false},  {0x65735546, "fuse", false},
    {0xf2f52010, "f2fs", false},
};

FileSystem file_system_of(int fd) {
  struct statfs info {};
  if (::fstatfs(fd, &info) == 0) {
    for (const FileSystem& known : kFileSystems) {
      if (known.magic == info.f_type) return known;
    }
  }
  return {0, "this file system", false};
}

struct DioAlignment {
  std::uint32_t memory = 0, offset = 0;
};

// Nothing if the kernel or the file system does not tell; zeros if it does no direct access to this file.
std::optional<DioAlignment> dio_alignment(int fd) {
  struct statx info {};
  if (::statx(fd, "", AT_EMPTY_PATH, kStatxDioAlign, &info) != 0) return std::nullopt;
  if ((info.stx_mask & kStatxDioAlign) == 0) return std::nullopt;
  DioAlignment found;
  static_assert(sizeof(info) >= kDioMemAlignPlace + sizeof(found));
  std::memcpy(&found, static_cast<const char*>(static_cast<const void*>(&info)) + kDioMemAlignPlace, sizeof(found));
  return found;
}

}  // namespace

std::string_view file_system_name(int fd) { return file_system_of(fd).name; }

DirectAccess open_direct(int fd, int flags) {
  DirectAccess out;
  const FileSystem fs = file_system_of(fd);
  const std::optional<DioAlignment> told = dio_alignment(fd);
  if (fs.in_memory) {
    out.why_not = std::string(fs.name) + " keeps files in memory";
  } else if (told && (told->memory == 0 || told->offset == 0)) {
    out.why_not = std::string(fs.name) + " has no direct access to this file";
  } else if (told && told->offset > kLargestUnit) {
    out.why_not = std::string(fs.name) + " wants units of " + std::to_string(told->offset) + " bytes";
  } else {
    // By the descriptor, not by the name: that may be another file by now.
    const std::string self = "/proc/self/fd/" + std::to_string(fd);
    out.fd.reset(::open(self.c_str(), flags | O_CLOEXEC | O_DIRECT));
    if (!out.fd.valid()) out.why_not = std::string(fs.name) + " refuses O_DIRECT: " + std::strerror(errno);
  }
  if (out.fd.valid()) {
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    out.geometry = {true, std::max<std::uint64_t>(page, told ? told->offset : 0), told ? told->memory : page};
  }
  return out;
}

std::string direct_access_note(int fd, const FileGeometry& geometry) {
  return "direct (" + std::string(file_system_name(fd)) + "), whole units of " + std::to_string(geometry.unit) +
         " bytes, memory aligned to " + std::to_string(geometry.memory_alignment);
}

Code file_error_code(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return Code::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
    case ETXTBSY:
      return Code::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return Code::kResourceExhausted;
    case ESTALE:
      return Code::kStale;
    case EINVAL:
    case EISDIR:
    case ENAMETOOLONG:
    case ELOOP:
      return Code::kInvalidArgument;
    case EOPNOTSUPP:
      return Code::kUnsupported;
    default:
      return Code::kUnavailable;
  }
}

}  // namespace kvferry
