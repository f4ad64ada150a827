// Shared memory in a memfd, sealed against shrinking, so that no peer can make our accesses fault. Immutable once made;
// movable; the mapping ends with the object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/numa.h"
#include "base/unique_fd.h"
#include "kvferry/status.h"

namespace kvferry {

struct ArenaOptions {
  bool huge_pages = false;  // where they are to be had: reserved ones, else transparent ones
  NumaPlacement placement{};
};

class Arena {
 public:
  // Allocates all pages at once: kResourceExhausted now rather than SIGBUS later. Zeroed. The file has at least
  // `length` bytes; in reserved huge pages, whole ones.
  static Result<Arena> create(std::uint64_t length, std::string_view name, const ArenaOptions& options = {});
  // Maps what a peer passed. kProtocolError unless it is a memfd, sealed against shrinking, of exactly `length` bytes.
  static Result<Arena> map(UniqueFd fd, std::uint64_t length, bool writable);

  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  std::byte* data() const { return data_; }
  std::uint64_t length() const { return length_; }
  int fd() const { return fd_.get(); }
  std::uint64_t page_bytes() const { return page_bytes_; }  // of an arena that was created here
  // Gives the memory back although other processes may still have it mapped: they, too, find zeros from now on.
  void discard();

 private:
  Arena(UniqueFd fd, std::byte* data, std::uint64_t length) : fd_(std::move(fd)), data_(data), length_(length) {}
  static Result<Arena> create_file(std::uint64_t length, const char* label, const ArenaOptions& options, bool reserved);
  void unmap();
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::uint64_t length_ = 0;
  std::uint64_t page_bytes_ = 0;
};

// Reads the size and seals of a descriptor of unknown origin. kProtocolError if it could shrink under us.
Result<std::uint64_t> sealed_size(int fd);

}  // namespace kvferry
