// What all fuzz targets share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/bytes.h"

namespace kvferry::fuzz {

inline ByteView view(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}

// An invariant that must hold for every input; abort is what libFuzzer reports.
inline void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace kvferry::fuzz
