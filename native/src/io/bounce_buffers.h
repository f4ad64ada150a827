// Aligned buffers for runs whose memory is not: one block of memory, made at first need. Used by one thread.
#pragma once

#include <sys/mman.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "io/io_queue.h"

namespace kvferry {

class BounceBuffers {
 public:
  static constexpr std::uint32_t kCount = 16;
  static constexpr std::uint64_t kLength = kCount * kBounceBytes;
  static constexpr std::uint32_t kNone = kCount;

  BounceBuffers() = default;
  ~BounceBuffers() {
    if (memory_ != nullptr) ::munmap(memory_, kLength);
  }
  BounceBuffers(const BounceBuffers&) = delete;
  BounceBuffers& operator=(const BounceBuffers&) = delete;

  // False if there is no memory for them. Page aligned, which is enough for any direct access to units of up to a page.
  bool prepare() {
    if (memory_ != nullptr) return true;
    void* memory = ::mmap(nullptr, kLength, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    memory_ = static_cast<std::byte*>(memory);
    return true;
  }
  std::byte* memory() const { return memory_; }
  std::byte* at(std::uint32_t index) const { return memory_ + index * kBounceBytes; }
  std::uint32_t take() {  // kNone: all are in use
    for (std::uint32_t i = 0; i < kCount; ++i) {
      if (!used_[i]) {
        used_[i] = true;
        return i;
      }
    }
    return kNone;
  }
  void give_back(std::uint32_t index) {
    if (index != kNone) used_[index] = false;
  }

 private:
  std::byte* memory_ = nullptr;
  std::array<bool, kCount> used_{};
};

}  // namespace kvferry
