#include "transport/file/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

namespace kvferry {
namespace {

constexpr mode_t kNewFileMode = 0600;  // a KV cache tells what was asked

int access_flags(std::uint8_t access) {
  if (access == kRemoteRead) return O_RDONLY;
  return O_RDWR;  // also for write only: the page cache reads what is around an unaligned write
}

Status file_error(const std::string& path, std::string_view what, int error) {
  return errno_status(file_error_code(error), "file " + path + ": " + std::string(what), error);
}

}  // namespace

Result<std::shared_ptr<OpenFile>> OpenFile::open(const std::string& path, const FileOptions& options) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    return {Code::kInvalidArgument, "a file needs a path without zero bytes"};
  }
  if (options.access == 0 || (options.access & ~(kRemoteRead | kRemoteWrite)) != 0) {
    return {Code::kInvalidArgument, "file " + path + ": unknown access bits"};
  }
  if (options.create && options.length == 0) {
    return {Code::kInvalidArgument, "file " + path + ": to create it, say its length"};
  }
  std::shared_ptr<OpenFile> file(new OpenFile(path, options));
  bool created = false;
  KVF_RETURN_IF_ERROR(file->open_buffered(&created));
  Status ready = file->check_kind();
  if (ready.ok()) ready = file->settle_length();
  if (ready.ok()) ready = file->open_direct();
  if (ready.ok()) ready = file->persist_name();
  if (ready.ok()) return file;
  if (created) ::unlink(path.c_str());
  return ready;
}

Status OpenFile::open_buffered(bool* created) {
  // Never wait for the other end of a pipe (check_kind() takes the flag back). To create is to write, whatever
  // transfers may do afterwards.
  const int flags = (options_.create ? O_RDWR : access_flags(options_.access)) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  if (options_.create) {
    buffered_.reset(::open(path_.c_str(), flags | O_CREAT | O_EXCL, kNewFileMode));
    *created = buffered_.valid();
    if (*created) return {};
    if (errno != EEXIST) return file_error(path_, "cannot be created", errno);
  }
  buffered_.reset(::open(path_.c_str(), flags));
  if (buffered_.valid()) return {};
  return file_error(path_, "cannot be opened", errno);
}

Status OpenFile::check_kind() {
  struct stat info {};
  if (::fstat(buffered_.get(), &info) != 0) return file_error(path_, "cannot be looked at", errno);
  if (!S_ISREG(info.st_mode) && !S_ISBLK(info.st_mode)) {
    return {Code::kInvalidArgument, "file " + path_ + " is neither a regular file nor a block device"};
  }
  // Some file systems take O_NONBLOCK for "rather fail than wait for the disk".
  const int flags = ::fcntl(buffered_.get(), F_GETFL);
  if (flags >= 0 && ::fcntl(buffered_.get(), F_SETFL, flags & ~O_NONBLOCK) == 0) return {};
  return file_error(path_, "its flags cannot be set", errno);
}

// The length of the region; with `create`, allocates it.
Status OpenFile::settle_length() {
  const off_t end = ::lseek(buffered_.get(), 0, SEEK_END);  // of a block device, too
  if (end < 0) return file_error(path_, "has no length", errno);
  const auto present = static_cast<std::uint64_t>(end);
  length_ = options_.length == 0 ? present : options_.length;
  if (length_ == 0) return {Code::kInvalidArgument, "file " + path_ + " is empty; say a length and create=true"};
  if (length_ > static_cast<std::uint64_t>(INT64_MAX)) {
    return {Code::kInvalidArgument, "file " + path_ + ": a length of " + std::to_string(length_) + " bytes"};
  }
  if (!options_.create) {
    if (length_ <= present) return {};
    return {Code::kOutOfRange, "file " + path_ + " has " + std::to_string(present) + " bytes, asked for " +
                                   std::to_string(length_) + "; create=true makes it longer"};
  }
  // Space now rather than ENOSPC in the middle of a transfer.
  if (::fallocate(buffered_.get(), 0, 0, static_cast<off_t>(length_)) == 0) return {};
  if (errno != EOPNOTSUPP) return file_error(path_, "its space cannot be allocated", errno);
  allocation_note_ = "; space is not reserved: the file system cannot";
  if (length_ <= present || ::ftruncate(buffered_.get(), static_cast<off_t>(length_)) == 0) return {};
  return file_error(path_, "cannot be made longer", errno);
}

Status OpenFile::open_direct() {
  if (options_.direct == DirectIo::kNever) {
    why_buffered_ = "as asked for";
    return {};
  }
  DirectAccess access = kvferry::open_direct(buffered_.get(), access_flags(options_.access));
  direct_ = std::move(access.fd);
  geometry_ = access.geometry;
  why_buffered_ = std::move(access.why_not);
  if (direct_.valid()) return {};
  if (options_.direct == DirectIo::kAuto) return {};
  return {Code::kUnsupported, "file " + path_ + ": direct=always, but " + why_buffered_};
}

// A new name outlives a power cut only once its directory is on stable storage.
Status OpenFile::persist_name() const {
  if (!options_.create || options_.sync == FileSync::kNone) return {};
  if (::fsync(buffered_.get()) != 0) return file_error(path_, "cannot be synced", errno);
  const std::filesystem::path parent = std::filesystem::path(path_).parent_path();
  const UniqueFd directory(::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.valid() && ::fsync(directory.get()) == 0) return {};
  return file_error(path_, "its directory cannot be synced", errno);
}

FileGeometry OpenFile::geometry() const {
  FileGeometry now = geometry_;
  if (direct_given_up_.load(std::memory_order_relaxed)) now.direct = false;
  return now;
}

bool OpenFile::give_up_direct(int error) {
  if (options_.direct == DirectIo::kAlways) return false;
  const std::lock_guard lock(mutex_);
  why_buffered_ = "a direct request was refused: " + std::string(std::strerror(error));
  direct_given_up_ = true;
  return true;
}

std::string OpenFile::note() const {
  const FileGeometry now = geometry();
  if (now.direct) {
    return direct_access_note(buffered_.get(), now) + allocation_note_;
  }
  const std::lock_guard lock(mutex_);
  return "buffered: " + why_buffered_ + allocation_note_;
}

void OpenFile::set_sync_failure(const Status& why) {
  const std::lock_guard lock(mutex_);
  if (sync_failure_.ok()) sync_failure_ = why;
}

Status OpenFile::sync_failure() const {
  const std::lock_guard lock(mutex_);
  return sync_failure_;
}

}  // namespace kvferry
