#include "transport/shm/foreign_copy.h"

#include <cerrno>
#include <string>

namespace kvferry {
namespace {

void* pointer(std::uint64_t address) { return reinterpret_cast<void*>(address); }  // NOLINT: an address over there

void advance(iovec* segment, std::size_t bytes) {
  segment->iov_base = static_cast<std::byte*>(segment->iov_base) + bytes;
  segment->iov_len -= bytes;
}

}  // namespace

void ForeignCopy::add(std::byte* local, std::uint64_t remote_address, std::uint64_t length, std::size_t tag) {
  local_.push_back({local, length});
  remote_.push_back({pointer(remote_address), length});
  tags_.push_back(tag);
  bytes_ += length;
}

Status ForeignCopy::error_of(int error) const {
  const std::string process = "process " + std::to_string(pid_);
  switch (error) {
    case ESRCH:
      return {Code::kPeerLost, process + " is gone"};
    case ENOSYS:
      return {Code::kUnsupported, "this kernel has no process_vm_readv"};
    case EPERM:
    case EACCES:
      return {Code::kUnavailable,
              "the kernel forbids to copy from or to " + process +
                  ": both must run as the same user with the same capabilities and may not be undumpable; in a "
                  "container allow the ptrace access check (--cap-add=SYS_PTRACE, or a seccomp profile with "
                  "process_vm_readv), or set sysctl kernel.yama.ptrace_scope=0"};
    default:
      return errno_status(Code::kResourceExhausted, "copy from or to " + process, error);
  }
}

void ForeignCopy::drop(std::vector<std::size_t>* failed) {
  failed->insert(failed->end(), tags_.begin(), tags_.end());
  reset();
}

void ForeignCopy::reset() {
  local_.clear();
  remote_.clear();
  tags_.clear();
  bytes_ = 0;
}

Status ForeignCopy::flush(Op op, std::vector<std::size_t>* failed) {
  const auto call = op == Op::kRead ? ::process_vm_readv : ::process_vm_writev;
  std::size_t first = 0;  // runs before it are settled
  while (first < local_.size()) {
    const std::size_t count = local_.size() - first;
    const ssize_t moved = call(pid_, &local_[first], count, &remote_[first], count, 0);
    if (moved < 0 && errno == EFAULT) {
      failed->push_back(tags_[first++]);  // the run at the front is the one that could not even begin
      continue;
    }
    if (moved < 0) {
      const Status status = error_of(errno);
      failed->insert(failed->end(), tags_.begin() + static_cast<std::ptrdiff_t>(first), tags_.end());
      reset();
      return status;
    }
    auto left = static_cast<std::size_t>(moved);
    while (first < local_.size() && left >= local_[first].iov_len) left -= local_[first++].iov_len;
    if (first == local_.size()) break;
    advance(&local_[first], left);  // it stopped inside a run: the next call tells why
    advance(&remote_[first], left);
  }
  reset();
  return {};
}

Result<std::uint64_t> ForeignCopy::peek(std::uint64_t address) const {
  std::uint64_t value = 0;
  const iovec local{&value, sizeof(value)};
  const iovec remote{pointer(address), sizeof(value)};
  const ssize_t moved = ::process_vm_readv(pid_, &local, 1, &remote, 1, 0);
  if (moved == sizeof(value)) return value;
  if (moved >= 0 || errno == EFAULT) {
    return {Code::kNotFound, "process " + std::to_string(pid_) + " has nothing at the address of its probe"};
  }
  return error_of(errno);
}

}  // namespace kvferry
