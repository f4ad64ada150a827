#include "base/random.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/unique_fd.h"

namespace kvferry {
namespace {

// A sandbox may forbid the system call and still offer the device.
bool fill_from_device(MutableByteView out) {
  const UniqueFd fd(::open("/dev/urandom", O_RDONLY | O_CLOEXEC));
  while (fd.valid() && !out.empty()) {
    const ssize_t got = ::read(fd.get(), out.data(), out.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    out = out.subspan(static_cast<std::size_t>(got));
  }
  return fd.valid();
}

}  // namespace

void fill_random(MutableByteView out) {
  while (!out.empty()) {
    const ssize_t got = ::getrandom(out.data(), out.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    out = out.subspan(static_cast<std::size_t>(got));
  }
  if (out.empty() || fill_from_device(out)) return;
  std::fputs("kvferry: the kernel gives no random bytes (getrandom, /dev/urandom); identities would not be unique\n",
             stderr);
  std::abort();
}

std::uint64_t random_u64() {
  std::array<std::byte, sizeof(std::uint64_t)> bytes{};
  fill_random(bytes);
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

}  // namespace kvferry
