// The half of base/socket.h that moves bytes and descriptors.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

#include "base/deadline.h"
#include "base/limits.h"
#include "base/socket.h"

namespace kvferry {
namespace {

enum class Direction { kSend, kReceive };

Code code_of_io_error(int error) {
  switch (error) {
    case EPIPE:
    case ECONNRESET:
    case ECONNABORTED:
    case ENOTCONN:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
      return Code::kPeerLost;
    case ENOMEM:
    case ENOBUFS:
    case ETOOMANYREFS:
      return Code::kResourceExhausted;
    case EFAULT:
      return Code::kInvalidArgument;
    default:
      return Code::kInternal;
  }
}

struct Progress {
  Direction direction = Direction::kSend;
  std::size_t done = 0;
  std::size_t total = 0;

  std::string to_string() const {
    return std::string(direction == Direction::kSend ? "sending" : "receiving") + " stopped after " +
           std::to_string(done) + " of " + std::to_string(total) + " bytes";
  }
};

// What became of one sendmsg or recvmsg: OK to go on (after waiting, if it was not ready), or the end.
Status after_step(int fd, ssize_t moved, int error, const Progress& progress, const Wait& wait) {
  if (moved > 0) return {};
  if (moved == 0) return {Code::kPeerLost, progress.to_string() + ": closed by the peer"};
  if (error == EINTR) return {};
  if (error != EAGAIN && error != EWOULDBLOCK)
    return errno_status(code_of_io_error(error), progress.to_string(), error);
  const short events = progress.direction == Direction::kSend ? POLLOUT : POLLIN;
  const Status ready = wait_for(fd, events, wait);
  return ready.ok() ? ready : ready.with_context(progress.to_string());
}

// One sendmsg or recvmsg. Not OK: the gate is closed; else what the call returned, or minus its errno.
Result<ssize_t> one_step(int fd, msghdr* message, Direction direction, const Wait& wait) {
  const GatePass pass(wait.gate);
  if (!pass.inside()) return gate_closed();
  const ssize_t moved =
      direction == Direction::kSend ? ::sendmsg(fd, message, MSG_NOSIGNAL) : ::recvmsg(fd, message, 0);
  return moved < 0 ? -errno : moved;
}

Status move_vectored(int fd, std::span<iovec> segments, Direction direction, const Wait& wait) {
  Progress progress{direction, 0, 0};
  for (const iovec& segment : segments) progress.total += segment.iov_len;
  drop_front(segments, 0);
  while (!segments.empty()) {
    msghdr message{};
    message.msg_iov = segments.data();
    message.msg_iovlen = std::min<std::size_t>(segments.size(), IOV_MAX);
    KVF_ASSIGN_OR_RETURN(const ssize_t moved, one_step(fd, &message, direction, wait));
    KVF_RETURN_IF_ERROR(after_step(fd, moved, static_cast<int>(-moved), progress, wait));
    if (moved <= 0) continue;
    progress.done += static_cast<std::size_t>(moved);
    drop_front(segments, static_cast<std::size_t>(moved));
  }
  return {};
}

struct ControlBuffer {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxFdsPerFrame)> bytes{};
};

// Takes ownership of every descriptor that came with the message, so that none leaks whatever is wrong with it.
void take_fds(msghdr& message, std::vector<UniqueFd>& fds) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      fds.emplace_back(fd);
    }
  }
}

}  // namespace

void drop_front(std::span<iovec>& segments, std::size_t bytes) {
  while (!segments.empty() && bytes >= segments.front().iov_len) {
    bytes -= segments.front().iov_len;
    segments = segments.subspan(1);
  }
  if (segments.empty()) return;
  segments.front().iov_base = static_cast<std::byte*>(segments.front().iov_base) + bytes;
  segments.front().iov_len -= bytes;
}

Result<std::size_t> recv_some(int fd, std::span<const iovec> segments, const Wait& wait) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(segments.data());  // recvmsg does not write to it
  message.msg_iovlen = std::min<std::size_t>(segments.size(), IOV_MAX);
  for (;;) {
    KVF_ASSIGN_OR_RETURN(const ssize_t got, one_step(fd, &message, Direction::kReceive, wait));
    KVF_RETURN_IF_ERROR(after_step(fd, got, static_cast<int>(-got), {Direction::kReceive, 0, 1}, wait));
    if (got > 0) return static_cast<std::size_t>(got);
  }
}

Status send_vectored(int fd, std::span<iovec> segments, const Wait& wait) {
  return move_vectored(fd, segments, Direction::kSend, wait);
}

Status recv_vectored(int fd, std::span<iovec> segments, const Wait& wait) {
  return move_vectored(fd, segments, Direction::kReceive, wait);
}

Status send_all(int fd, ByteView bytes, const Wait& wait) {
  iovec segment{const_cast<std::byte*>(bytes.data()), bytes.size()};  // sendmsg does not write to it
  return send_vectored(fd, {&segment, 1}, wait);
}

Status recv_exact(int fd, MutableByteView out, const Wait& wait) {
  iovec segment{out.data(), out.size()};
  return recv_vectored(fd, {&segment, 1}, wait);
}

Status send_with_fds(int fd, ByteView bytes, std::span<const int> fds, const Wait& wait) {
  if (bytes.empty() || fds.empty() || fds.size() > kMaxFdsPerFrame) {
    return {Code::kInternal, "descriptors need at least one byte to ride on, and at most " +
                                 std::to_string(kMaxFdsPerFrame) + " go at once"};
  }
  ControlBuffer control;
  iovec segment{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &segment;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = CMSG_SPACE(fds.size_bytes());
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  for (;;) {
    const ssize_t sent = ::sendmsg(fd, &message, MSG_NOSIGNAL);
    KVF_RETURN_IF_ERROR(after_step(fd, sent, errno, {Direction::kSend, 0, bytes.size()}, wait));
    if (sent > 0) return send_all(fd, bytes.subspan(static_cast<std::size_t>(sent)), wait);
  }
}

Result<std::vector<UniqueFd>> recv_with_fds(int fd, MutableByteView out, std::size_t max_fds, const Wait& wait) {
  std::vector<UniqueFd> fds;
  Progress progress{Direction::kReceive, 0, out.size()};
  while (progress.done < out.size()) {
    ControlBuffer control;
    iovec segment{out.data() + progress.done, out.size() - progress.done};
    msghdr message{};
    message.msg_iov = &segment;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    const ssize_t got = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    const int error = errno;
    if (got > 0) take_fds(message, fds);
    KVF_RETURN_IF_ERROR(after_step(fd, got, error, progress, wait));
    if (got <= 0) continue;
    progress.done += static_cast<std::size_t>(got);
    if ((message.msg_flags & MSG_CTRUNC) != 0 || fds.size() > max_fds) {
      return {Code::kProtocolError, "more descriptors came along than the " + std::to_string(max_fds) + " allowed"};
    }
  }
  return fds;
}

}  // namespace kvferry
