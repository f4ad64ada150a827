// What a file system allows between disk and memory without the page cache, and what its errors mean.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/unique_fd.h"
#include "kvferry/status.h"

namespace kvferry {

struct FileGeometry {
  bool direct = false;
  std::uint64_t unit = 4096;           // direct access: places and lengths are multiples of it; never less than a page
  std::uint64_t memory_alignment = 1;  // direct access: addresses are multiples of it
};

struct DirectAccess {
  UniqueFd fd;            // of the same file, with O_DIRECT; not valid: buffered access only
  FileGeometry geometry;  // direct if fd is valid
  std::string why_not;    // why buffered only
};

// Opens the file behind `fd` once more, for direct access. `flags`: O_RDONLY or O_RDWR.
DirectAccess open_direct(int fd, int flags);

std::string_view file_system_name(int fd);  // "ext4"; "this file system" if we do not know it

// "direct (ext4), whole units of 4096 bytes, memory aligned to 512"
std::string direct_access_note(int fd, const FileGeometry& geometry);

// The code of an error of a read, write, sync or open.
Code file_error_code(int error);

}  // namespace kvferry
