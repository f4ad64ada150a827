#include "store/log/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>

#include "io/direct_access.h"
#include "io/plain_queue.h"
#include "io/uring_queue.h"
#include "store/log/format.h"

namespace kvferry::store::log {
namespace {

constexpr mode_t kNewFileMode = 0600;  // a KV cache tells what was asked
constexpr std::uint64_t kStatBlock = 512;

// A file or a directory of ours that is not there is a fault of the disk, not an object that nobody has.
Status failed(const std::string& path, std::string_view what, int error) {
  Code code = file_error_code(error);
  std::string hint = error == ENOSPC || error == EDQUOT ? "; make room on that file system" : "";
  if (code == Code::kNotFound || code == Code::kStale) {
    code = Code::kUnavailable;
    hint = "; make its directory again, or mount its disk";
  }
  return errno_status(code, path + ": " + std::string(what) + hint, error);
}

// Direct access where it is wanted and works in our units, else through the page cache.
Result<LogFile> describe(std::string path, UniqueFd fd, bool direct) {
  LogFile file;
  file.path = std::move(path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return failed(file.path, "cannot be looked at", errno);
  if (!S_ISREG(info.st_mode)) return {Code::kInvalidArgument, file.path + " is no regular file"};
  file.bytes = static_cast<std::uint64_t>(info.st_size);
  file.note = "buffered: as asked for";
  if (direct) {
    DirectAccess access = open_direct(fd.get(), O_RDWR);
    file.direct = access.fd.valid() && kUnit % access.geometry.unit == 0;
    file.note = "buffered: " + access.why_not;
    if (access.fd.valid()) file.note = direct_access_note(fd.get(), access.geometry);
    if (access.fd.valid() && !file.direct) file.note = "buffered: not in units of 4096 bytes, but " + file.note;
    if (file.direct) {
      file.memory_alignment = access.geometry.memory_alignment;
      fd = std::move(access.fd);
    }
  }
  file.fd = std::move(fd);
  return file;
}

class RealDisk final : public Disk {
 public:
  explicit RealDisk(bool io_uring) : io_uring_(io_uring) {}

  Result<LogFile> create(const std::string& path, std::uint64_t bytes, bool direct) override {
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, kNewFileMode));
    if (!fd.valid()) return failed(path, "cannot be created", errno);
    Status ready = allocate(path, fd.get(), bytes);
    if (ready.ok()) {
      Result<LogFile> file = describe(path, std::move(fd), direct);
      if (file.ok()) return file;
      ready = file.status();
    }
    ::unlink(path.c_str());
    return ready;
  }

  Result<LogFile> open(const std::string& path, bool direct) override {
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!fd.valid()) return failed(path, "cannot be opened", errno);
    return describe(path, std::move(fd), direct);
  }

  Status truncate(const LogFile& file, std::uint64_t bytes) override {
    if (::ftruncate(file.fd.get(), static_cast<off_t>(bytes)) == 0) return {};
    return failed(file.path, "cannot be cut to its length", errno);
  }

  Status extend(const LogFile& file, std::uint64_t bytes) override { return allocate(file.path, file.fd.get(), bytes); }

  Status rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) == 0) return {};
    return failed(from, "cannot be renamed to " + to, errno);
  }

  Status remove(const std::string& path) override {
    if (::unlink(path.c_str()) == 0 || errno == ENOENT) return {};
    return failed(path, "cannot be removed", errno);
  }

  Status sync_directory(const std::string& path) override {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.valid() && ::fsync(fd.get()) == 0) return {};
    return failed(path, "cannot be synced", errno);
  }

  Result<std::vector<std::string>> list(const std::string& directory) override {
    std::vector<std::string> names;
    std::error_code error;
    std::filesystem::directory_iterator at(directory, error);
    for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
      names.push_back(at->path().filename().string());
    }
    if (error) return failed(directory, "cannot be listed", error.value());
    return names;
  }

  std::shared_ptr<IoQueue> make_queue() override {
    if (!io_uring_) return std::make_shared<PlainQueue>("io_uring is switched off");
    Result<std::unique_ptr<IoQueue>> queue = UringQueue::create();
    if (queue.ok()) return *std::move(queue);
    return std::make_shared<PlainQueue>(queue.status().message());
  }

 private:
  // Space now rather than ENOSPC in the middle of a record.
  static Status allocate(const std::string& path, int fd, std::uint64_t bytes) {
    if (::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0) return {};
    if (errno != EOPNOTSUPP) return failed(path, std::to_string(bytes) + " bytes cannot be allocated", errno);
    if (::ftruncate(fd, static_cast<off_t>(bytes)) == 0) return {};
    return failed(path, "cannot be made longer", errno);
  }

  const bool io_uring_;
};

}  // namespace

std::shared_ptr<Disk> real_disk(bool io_uring) { return std::make_shared<RealDisk>(io_uring); }

std::uint64_t allocated_bytes(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 ? static_cast<std::uint64_t>(info.st_blocks) * kStatBlock : 0;
}

std::uint64_t file_length(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

}  // namespace kvferry::store::log
