#include "kvferry/types.h"

namespace kvferry {

std::string_view memory_kind_name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kHost:
      return "host";
    case MemoryKind::kCuda:
      return "cuda";
    case MemoryKind::kHip:
      return "hip";
    case MemoryKind::kAscend:
      return "ascend";
    case MemoryKind::kFile:
      return "file";
    case MemoryKind::kDax:
      return "dax";
  }
  return "unknown";
}

}  // namespace kvferry
