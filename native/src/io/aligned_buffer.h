// Memory that direct access takes: page aligned, zeroed. Movable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

namespace kvferry {

class AlignedBuffer {
 public:
  static constexpr std::size_t kAlignment = 4096;

  AlignedBuffer() = default;
  // `bytes` is rounded up to the alignment. data() is nullptr if there is no memory.
  explicit AlignedBuffer(std::uint64_t bytes)
      : size_((static_cast<std::size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment),
        data_(static_cast<std::byte*>(std::aligned_alloc(kAlignment, size_ == 0 ? kAlignment : size_))) {
    if (data_) std::memset(data_.get(), 0, size_);
  }

  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return data_ ? size_ : 0; }
  std::span<std::byte> span() const { return {data(), size()}; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::size_t size_ = 0;
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace kvferry
