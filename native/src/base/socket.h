// Stream sockets (TCP and unix) that never throw, never raise SIGPIPE and never wait without a deadline.
// All sockets made here are non-blocking and close-on-exec. Functions are thread-safe as far as the descriptor is: one
// thread may send while another receives.
//
// Codes: kUnavailable (cannot connect or bind), kPeerLost (closed or reset), kDeadlineExceeded, kCancelled
// (interrupted), kResourceExhausted (out of descriptors or memory), kPermissionDenied, kInternal (misuse).
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <span>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/memory_gate.h"
#include "base/unique_fd.h"
#include "kvferry/endpoint.h"
#include "kvferry/status.h"
#include "kvferry/types.h"

namespace kvferry {

// Ends the waits of other threads: once set, every wait that was given it returns kCancelled. An eventfd.
class Interrupt {
 public:
  static Result<Interrupt> create();
  void set() const;
  void clear() const;
  bool is_set() const;
  int fd() const { return fd_.get(); }

 private:
  explicit Interrupt(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

struct Wait {  // how long a call may block, and what may end it early
  Deadline deadline;
  const Interrupt* interrupt = nullptr;
  milliseconds link_timeout{0};  // not 0: kPeerLost when is_link_dead() finds so
  MemoryGate* gate = nullptr;    // passed for each step that moves bytes; kCancelled once it is closed
};

// What a step says that did not get through the gate.
inline Status gate_closed() { return {Code::kCancelled, "the transfer was given up"}; }

struct PeerCredentials {  // as the kernel saw them when the connection was made
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

struct Accepted {
  UniqueFd fd;
  Endpoint remote;  // of a unix peer that did not bind: Family::kUnix with an empty host
};

// TCP: SO_REUSEADDR; the IPv6 wildcard takes IPv4 as well. Port 0: see local_endpoint. A unix path must be free.
Result<UniqueFd> listen_on(const Endpoint& endpoint, int backlog);
Result<Endpoint> local_endpoint(int fd);
Result<Endpoint> remote_endpoint(int fd);
// TCP_NODELAY is set on TCP. `from`: the local address to connect from, its port usually 0; null: the kernel chooses.
// The status names the endpoint.
Result<UniqueFd> connect_to(const Endpoint& endpoint, const Wait& wait, const Endpoint* from = nullptr);
// kResourceExhausted when out of descriptors: the connection stays queued, so pause before the next call.
Result<Accepted> accept_from(int listener, const Wait& wait);

// events: POLLIN and/or POLLOUT. OK also when the peer hung up: the next read or write tells.
Status wait_for(int fd, short events, const Wait& wait);
// True if the peer closed its end or the socket failed; never blocks, reads nothing.
bool is_hung_up(int fd);

Status send_all(int fd, ByteView bytes, const Wait& wait);
// Fills `out` or fails; kPeerLost at end of stream ("closed by peer after 3 of 24 bytes").
Status recv_exact(int fd, MutableByteView out, const Wait& wait);
// Any number of segments; the array is used up (modified) on the way.
Status send_vectored(int fd, std::span<iovec> segments, const Wait& wait);
Status recv_vectored(int fd, std::span<iovec> segments, const Wait& wait);
// What one system call brings, at least a byte; waits for it. At most IOV_MAX segments are looked at.
Result<std::size_t> recv_some(int fd, std::span<const iovec> segments, const Wait& wait);
// Takes `bytes` off the front; also drops empty segments.
void drop_front(std::span<iovec>& segments, std::size_t bytes);

// Unix sockets. `bytes` must not be empty; descriptors (at most kMaxFdsPerFrame) ride with its first byte.
Status send_with_fds(int fd, ByteView bytes, std::span<const int> fds, const Wait& wait);
// Fills `out`; whatever descriptors came along. More than max_fds, or a cut control message: kProtocolError.
Result<std::vector<UniqueFd>> recv_with_fds(int fd, MutableByteView out, std::size_t max_fds, const Wait& wait);
bool is_unix_socket(int fd);
Result<PeerCredentials> peer_credentials(int fd);

Status set_no_delay(int fd);
Status set_congestion_control(int fd, std::string_view algorithm);  // kUnsupported if the kernel lacks it
// Lets the kernel ask the other end now and then whether it is there, so that a dead link shows on a connection that
// only waits, too: within about `timeout`, at best 3 s.
Status watch_link(int fd, milliseconds timeout);
// True if a TCP connection has something to be acknowledged and got nothing for `timeout`. A process that is slow or
// stopped does not make a link dead: its kernel acknowledges, window probes as well.
bool is_link_dead(int fd, milliseconds timeout);
void abort_connection(UniqueFd fd);  // closes it; what was not sent yet is dropped, and the peer's next read fails
void shut_down(int fd);              // both directions; wakes threads that wait on the socket
void shut_down_sending(int fd);  // the peer sees the end of the stream; is_hung_up() still tells when it closes, too

}  // namespace kvferry
