// How a file is opened as a region of its node.
#pragma once

#include <cstdint>

#include "kvferry/types.h"

namespace kvferry {

enum class DirectIo : std::uint8_t {
  kAuto,    // past the page cache (O_DIRECT) where the file system allows it, else through it
  kAlways,  // kUnsupported where it does not
  kNever,   // always through the page cache
};

enum class FileSync : std::uint8_t {  // what a settled write to the file means
  kNone,                              // it is with the kernel: it survives our process, not a power cut
  kData,                              // it is on stable storage, with what is needed to read it again (fdatasync)
  kFull,                              // and so are all attributes, the time of change among them (fsync)
};

struct FileOptions {
  std::uint64_t length = 0;           // of the region; 0: what the file has now
  bool create = false;                // make the file if it is missing, allocate all of its `length` bytes
  std::uint8_t access = kRemoteRead;  // what transfers may do: kRemoteRead, kRemoteWrite or both
  DirectIo direct = DirectIo::kAuto;
  FileSync sync = FileSync::kNone;
};

}  // namespace kvferry
