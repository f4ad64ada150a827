#include "store/log/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>

#include "io/direct_access.h"
#include "store/log/disk.h"

namespace kvferry::store::log {
namespace {

constexpr mode_t kFileMode = 0600;

std::string holder(int fd) {
  std::array<char, 16> text{};
  const ssize_t length = ::pread(fd, text.data(), text.size(), 0);
  std::string digits;
  for (ssize_t i = 0; i < length && std::isdigit(static_cast<unsigned char>(text[static_cast<std::size_t>(i)])) != 0;
       ++i) {
    digits += text[static_cast<std::size_t>(i)];
  }
  return digits.empty() ? "another process" : "process " + digits;
}

}  // namespace

Result<DirectoryLock> DirectoryLock::take(const std::string& directory) {
  const std::string path = directory + "/LOCK";
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kFileMode));
  if (!fd.valid()) return errno_status(file_error_code(errno), path + ": cannot be opened", errno);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return errno_status(file_error_code(errno), path + ": cannot be locked", errno);
    return {Code::kUnavailable, "log " + directory + " is in use by " + holder(fd.get()) +
                                    "; give each node a directory of its own, or end that process"};
  }
  const std::string mine = std::to_string(::getpid()) + "\n";
  const bool written = ::ftruncate(fd.get(), 0) == 0 &&
                       ::pwrite(fd.get(), mine.data(), mine.size(), 0) == static_cast<ssize_t>(mine.size());
  if (!written) return errno_status(file_error_code(errno), path + ": cannot be written", errno);
  return DirectoryLock(std::move(fd));
}

std::uint64_t DirectoryLock::disk_bytes() const { return allocated_bytes(fd_.get()); }

}  // namespace kvferry::store::log
