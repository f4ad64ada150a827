// How to wait for a socket, and what our protocol adds: ping-pong of 4 KiB and bulk over one loopback connection
// between two processes, by blocking calls, poll, epoll and io_uring, and by a rail and its server.
//   tcp_bench [ROUNDS]      default 15
// All methods take turns. Prints medians; ratios within one run are what counts.
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/counters.h"
#include "base/deadline.h"
#include "transport/tcp/tcp_rail.h"
#include "transport/tcp/tcp_server.h"
#include "transport/tcp/tcp_transport.h"

namespace {

using namespace kvferry;  // NOLINT: a program of one file

constexpr std::size_t kSmall = 4096, kBlock = 65536, kBlocks = 16;  // per call
constexpr std::size_t kBulk = 64 * kBlocks * kBlock, kPings = 300;

void require(bool good, const char* what) {
  if (good) return;
  std::perror(what);
  std::_Exit(1);
}

// Sends or receives all of `segments`, waiting in one of the ways.
class Mover {
 public:
  virtual ~Mover() = default;
  virtual bool blocking() const { return false; }
  void send(int fd, std::span<iovec> segments) { move(fd, segments, true); }
  void receive(int fd, std::span<iovec> segments) { move(fd, segments, false); }

 protected:
  virtual ssize_t step(int fd, msghdr* message, bool sending) = 0;

 private:
  void move(int fd, std::span<iovec> segments, bool sending) {
    while (!segments.empty()) {
      msghdr message{};
      message.msg_iov = segments.data();
      message.msg_iovlen = segments.size();
      const ssize_t moved = step(fd, &message, sending);
      if (moved <= 0) std::_Exit(0);  // the other process is done
      drop_front(segments, static_cast<std::size_t>(moved));
    }
  }
};

class Blocking final : public Mover {
  bool blocking() const override { return true; }
  ssize_t step(int fd, msghdr* message, bool sending) override {
    return sending ? ::sendmsg(fd, message, MSG_NOSIGNAL) : ::recvmsg(fd, message, MSG_WAITALL);
  }
};

class Ready : public Mover {
 protected:
  virtual void wait(int fd, bool sending) = 0;

 private:
  ssize_t step(int fd, msghdr* message, bool sending) override {
    for (;;) {
      const ssize_t moved = sending ? ::sendmsg(fd, message, MSG_NOSIGNAL) : ::recvmsg(fd, message, 0);
      if (moved >= 0 || errno != EAGAIN) return moved;
      wait(fd, sending);
    }
  }
};

class Poll final : public Ready {
  void wait(int fd, bool sending) override {
    pollfd poller{fd, static_cast<short>(sending ? POLLOUT : POLLIN), 0};
    require(::poll(&poller, 1, -1) == 1, "poll");
  }
};

class Epoll final : public Ready {  // edge-triggered, registered once
  void wait(int fd, bool sending) override {
    epoll_event event{};
    if (!epoll_.valid()) {
      epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
      event.events = EPOLLIN | EPOLLOUT | EPOLLET;
      require(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
    }
    do {
      require(::epoll_wait(epoll_.get(), &event, 1, -1) == 1, "epoll_wait");
    } while ((event.events & (sending ? EPOLLOUT : EPOLLIN)) == 0);
  }
  UniqueFd epoll_;
};

class Uring final : public Mover {
 public:
  static bool possible() {
    io_uring_params params{};
    return UniqueFd(static_cast<int>(::syscall(SYS_io_uring_setup, 2, &params))).valid();
  }

 private:
  void open() {
    io_uring_params params{};
    ring_.reset(static_cast<int>(::syscall(SYS_io_uring_setup, 2, &params)));
    require(ring_.valid(), "io_uring_setup");
    const auto map = [&](std::size_t length, off_t what) {
      void* const memory =
          ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring_.get(), what);
      require(memory != MAP_FAILED, "mmap");
      return static_cast<std::byte*>(memory);
    };
    std::byte* const sq = map(params.sq_off.array + params.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    std::byte* const cq = map(params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe), IORING_OFF_CQ_RING);
    entries_ = reinterpret_cast<io_uring_sqe*>(map(params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
    sq_tail_ = reinterpret_cast<unsigned*>(sq + params.sq_off.tail);
    sq_mask_ = *reinterpret_cast<unsigned*>(sq + params.sq_off.ring_mask);
    sq_array_ = reinterpret_cast<unsigned*>(sq + params.sq_off.array);
    cq_head_ = reinterpret_cast<unsigned*>(cq + params.cq_off.head);
    cq_mask_ = *reinterpret_cast<unsigned*>(cq + params.cq_off.ring_mask);
    completions_ = reinterpret_cast<io_uring_cqe*>(cq + params.cq_off.cqes);
  }
  bool blocking() const override { return true; }
  ssize_t step(int fd, msghdr* message, bool sending) override {
    if (!ring_.valid()) open();
    const unsigned tail = *sq_tail_, index = tail & sq_mask_;
    io_uring_sqe& entry = entries_[index];
    std::memset(&entry, 0, sizeof(entry));
    entry.opcode = sending ? IORING_OP_SENDMSG : IORING_OP_RECVMSG;
    entry.fd = fd;
    entry.addr = reinterpret_cast<std::uint64_t>(message);
    entry.len = 1;
    entry.msg_flags = sending ? MSG_NOSIGNAL : MSG_WAITALL;
    sq_array_[index] = index;
    __atomic_store_n(sq_tail_, tail + 1, __ATOMIC_RELEASE);
    const auto done = ::syscall(SYS_io_uring_enter, ring_.get(), 1, 1, IORING_ENTER_GETEVENTS, nullptr, 0);
    require(done == 1, "io_uring_enter");
    const unsigned head = *cq_head_;
    const ssize_t moved = completions_[head & cq_mask_].res;
    __atomic_store_n(cq_head_, head + 1, __ATOMIC_RELEASE);
    return moved;
  }

  UniqueFd ring_;
  io_uring_sqe* entries_ = nullptr;
  io_uring_cqe* completions_ = nullptr;
  unsigned *sq_tail_ = nullptr, *sq_array_ = nullptr, *cq_head_ = nullptr;
  unsigned sq_mask_ = 0, cq_mask_ = 0;
};

struct Memory {
  std::byte* data = nullptr;
  Memory() {
    void* const memory = ::mmap(nullptr, kBulk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(memory != MAP_FAILED, "mmap");
    ::madvise(memory, kBulk, MADV_HUGEPAGE);
    std::memset(memory, 1, kBulk);
    data = static_cast<std::byte*>(memory);
  }
  // Block number i of `count`, scattered.
  std::byte* block(std::size_t i) const { return data + i * 617 % (kBulk / kBlock) * kBlock; }
};

struct Pair {  // one connection, and the process at the other end of it
  UniqueFd fd;
  pid_t child = 0;
};

Pair connect_child(bool blocking, const std::function<void(UniqueFd)>& serve) {
  const Wait wait{deadline_in(milliseconds(10000))};
  const UniqueFd listener = listen_on(*Endpoint::parse("127.0.0.1:0"), 1).value();
  Pair pair;
  pair.fd = connect_to(*local_endpoint(listener.get()), wait).value();
  UniqueFd far = accept_from(listener.get(), wait).value().fd;
  for (const int fd : {pair.fd.get(), far.get()}) {
    tune_same_host_socket(fd);
    if (blocking) ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  }
  pair.child = ::fork();
  if (pair.child != 0) return pair;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  pair.fd.reset();
  serve(std::move(far));
  std::_Exit(0);
}

struct Side {
  const char* name = nullptr;
  Pair pair;
  std::function<void()> ping, bulk;
  std::vector<double> us = {}, gb_per_s = {}, cpu_s_per_gb = {};
};

Side raw_side(const char* name, std::shared_ptr<Mover> mover, const Memory& memory) {
  // 8 bytes ask for so many bytes.
  const auto fetch = [mover, &memory](int fd, std::uint64_t bytes, bool serving) {
    std::array<iovec, kBlocks> segments;
    for (std::uint64_t done = 0; done < bytes;) {
      std::size_t count = 0;
      for (; count < kBlocks && done < bytes; ++count) {
        const std::uint64_t length = std::min<std::uint64_t>(kBlock, bytes - done);
        segments[count] = {memory.block(done / kBlock), length};
        done += length;
      }
      const std::span<iovec> some = std::span(segments).first(count);
      serving ? mover->send(fd, some) : mover->receive(fd, some);
    }
  };
  Side side{name,
            connect_child(mover->blocking(),
                          [&](UniqueFd fd) {
                            for (std::uint64_t bytes = 0;;) {
                              iovec ask{&bytes, sizeof(bytes)};
                              mover->receive(fd.get(), {&ask, 1});
                              fetch(fd.get(), bytes, true);
                            }
                          }),
            {},
            {}};
  const auto ask = [mover, fetch, fd = side.pair.fd.get()](std::uint64_t bytes) {
    iovec request{&bytes, sizeof(bytes)};
    const std::uint64_t wanted = bytes;
    mover->send(fd, {&request, 1});
    fetch(fd, wanted, false);
  };
  side.ping = [ask] { ask(kSmall); };
  side.bulk = [ask] { ask(kBulk); };
  return side;
}

Side our_side(const Memory& memory) {
  static RegionTable regions(nullptr, false);
  const auto region = regions.add({memory.data, kBulk, "bench", kRemoteRead, MemoryKind::kHost, 0, 0});
  require(region.ok(), "register");
  Side side{
      "rail and server",
      connect_child(false,
                    [&](UniqueFd fd) {
                      Channel channel(std::move(fd));
                      const Interrupt never = Interrupt::create().value();
                      Counters counters;
                      const TcpServer::Options options{milliseconds(10000), [](std::uint32_t) { return Status(); }};
                      (void)TcpServer(channel, never, regions, counters, options).serve();
                    }),
      {},
      {}};
  TcpRail::Connection connection{Channel(std::move(side.pair.fd)), Interrupt::create().value(), {}, 1, {}};
  const auto rail = std::make_shared<TcpRail>(std::move(connection), false);
  const auto execute = [rail](const std::vector<RunOp>& runs, std::uint64_t list) {
    static const std::atomic<bool> never{false};
    std::vector<Status> results(runs.size());
    const Batch batch{Op::kRead, runs, list};
    require(rail->execute(batch, results, deadline_in(milliseconds(10000)), never).ok(), "execute");
  };
  std::vector<RunOp> small{{memory.data, region->key, kBlock, kSmall}}, all;
  for (std::size_t i = 0; i < kBulk / kBlock; ++i) {
    all.push_back({memory.block(i), region->key, i * 619 % (kBulk / kBlock) * kBlock, kBlock});
  }
  side.ping = [execute, small] { execute(small, 1); };
  side.bulk = [execute, all] { execute(all, 2); };
  return side;
}

double cpu_seconds(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void measure(Side& side) {
  clockid_t far = 0;
  require(::clock_getcpuclockid(side.pair.child, &far) == 0, "clock_getcpuclockid");
  for (std::size_t i = 0; i < kPings; ++i) side.us.push_back(seconds_of(side.ping) * 1e6);
  const double before = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) + cpu_seconds(far);
  const double seconds = seconds_of(side.bulk);
  const double used = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) + cpu_seconds(far) - before;
  side.gb_per_s.push_back(kBulk / seconds / 1e9);
  side.cpu_s_per_gb.push_back(used / (kBulk / 1e9));
}

double median(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t rounds = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 15;
  const Memory memory;
  std::vector<Side> sides;
  sides.push_back(raw_side("blocking", std::make_shared<Blocking>(), memory));
  sides.push_back(raw_side("poll", std::make_shared<Poll>(), memory));
  sides.push_back(raw_side("epoll", std::make_shared<Epoll>(), memory));
  if (Uring::possible()) sides.push_back(raw_side("io_uring", std::make_shared<Uring>(), memory));
  sides.push_back(our_side(memory));
  for (std::size_t round = 0; round < rounds; ++round) {
    for (Side& side : sides) measure(side);
  }
  std::printf("%-18s %12s %8s %10s\n", "", "4 KiB us p50", "GB/s", "CPU s/GB");
  for (Side& side : sides) {
    std::printf("%-18s %12.2f %8.2f %10.3f\n", side.name, median(side.us), median(side.gb_per_s),
                median(side.cpu_s_per_gb));
    ::kill(side.pair.child, SIGKILL);
    ::waitpid(side.pair.child, nullptr, 0);
  }
  return 0;
}
