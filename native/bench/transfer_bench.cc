// Transfers between two processes, against a memcpy and a plain socket stream of the same bytes in the same run.
//   transfer_bench [BLOCK_BYTES [BLOCKS [ROUNDS]]]      default 65536 1024 15
// Both sides are scattered permutations. Prints medians; ratios within one run are what counts.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/socket.h"
#include "kvferry/engine.h"
#include "transport/tcp/tcp_transport.h"

namespace {

using namespace kvferry;  // NOLINT: a program of one file

struct Workload {
  std::uint64_t block_bytes = 65536, blocks = 1024, rounds = 15;
  std::vector<std::uint64_t> here, there;  // block numbers, permuted

  std::uint64_t bytes() const { return block_bytes * blocks; }
  void shuffle() {
    here.resize(blocks);
    std::iota(here.begin(), here.end(), 0);
    there = here;
    std::shuffle(here.begin(), here.end(), std::mt19937(1));
    std::shuffle(there.begin(), there.end(), std::mt19937(2));
  }
};

std::byte* map_memory(std::uint64_t length) {
  void* const memory = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  ::madvise(memory, length, MADV_HUGEPAGE);
  std::memset(memory, 1, length);
  return static_cast<std::byte*>(memory);
}

void number_blocks(const Workload& work, std::byte* memory) {
  for (std::uint64_t i = 0; i < work.blocks; ++i) std::memcpy(memory + i * work.block_bytes, &i, sizeof(i));
}

// Whether block there[i] of the peer is block here[i] of ours.
void check_blocks(const Workload& work, const std::byte* memory) {
  for (std::uint64_t i = 0; i < work.blocks; ++i) {
    std::uint64_t number = 0;
    std::memcpy(&number, memory + work.here[i] * work.block_bytes, sizeof(number));
    if (number != work.there[i]) std::abort();
  }
}

double median_gb_per_s(const Workload& work, const std::function<void()>& once) {
  once();
  std::vector<double> seconds;
  for (std::uint64_t i = 0; i < work.rounds; ++i) {
    const auto begin = Clock::now();
    once();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return static_cast<double>(work.bytes()) / seconds[seconds.size() / 2] / 1e9;
}

void check(const Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, status.to_string().c_str());
  std::exit(1);
}

double bench_memcpy(const Workload& work, std::byte* to, const std::byte* from) {
  return median_gb_per_s(work, [&] {
    for (std::uint64_t i = 0; i < work.blocks; ++i) {
      std::memcpy(to + work.here[i] * work.block_bytes, from + work.there[i] * work.block_bytes, work.block_bytes);
    }
  });
}

// The plain stream: blocking sockets with a thread each, sixteen blocks per readv or writev, nothing else. Per round
// and connection one byte asks, and the child answers with its share.
constexpr std::size_t kBlocksPerCall = 16;

using VectorCall = ssize_t (*)(int, const iovec*, int);

bool move_share(const Workload& work, const std::vector<std::uint64_t>& order, std::byte* memory, int fd,
                std::size_t part, std::size_t parts, VectorCall call) {
  const std::uint64_t end = (part + 1) * work.blocks / parts;
  for (std::uint64_t i = part * work.blocks / parts; i < end;) {
    std::array<iovec, kBlocksPerCall> segments;
    std::size_t count = 0;
    for (; count < segments.size() && i < end; ++count, ++i) {
      segments[count] = {memory + order[i] * work.block_bytes, work.block_bytes};
    }
    for (std::size_t first = 0; first < count;) {
      const ssize_t moved = call(fd, &segments[first], static_cast<int>(count - first));
      if (moved <= 0) return false;
      auto left = static_cast<std::size_t>(moved);
      while (first < count && left >= segments[first].iov_len) left -= segments[first++].iov_len;
      if (first == count) break;
      segments[first].iov_base = static_cast<std::byte*>(segments[first].iov_base) + left;
      segments[first].iov_len -= left;
    }
  }
  return true;
}

void set_blocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK); }

void stream_child(const Workload& work, std::byte* memory, const std::vector<UniqueFd>& fds) {
  std::vector<std::thread> threads;
  for (std::size_t part = 0; part < fds.size(); ++part) {
    threads.emplace_back([&, part] {
      char ask = 0;
      while (::read(fds[part].get(), &ask, 1) == 1) {
        if (!move_share(work, work.there, memory, fds[part].get(), part, fds.size(), ::writev)) break;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ::_exit(0);
}

double bench_stream(const Workload& work, std::byte* to, std::byte* from, std::size_t streams) {
  const Wait wait{deadline_in(milliseconds(120000))};
  const UniqueFd listener = listen_on(*Endpoint::parse("127.0.0.1:0"), 8).value();
  const Endpoint endpoint = *local_endpoint(listener.get());
  std::vector<UniqueFd> near, far;
  for (std::size_t i = 0; i < streams; ++i) {
    near.push_back(std::move(connect_to(endpoint, wait)).value());
    far.push_back(std::move(accept_from(listener.get(), wait).value().fd));
    tune_same_host_socket(near.back().get());
    tune_same_host_socket(far.back().get());
    set_blocking(near.back().get());
    set_blocking(far.back().get());
  }
  const pid_t child = ::fork();
  if (child == 0) {
    near.clear();
    stream_child(work, from, far);
  }
  far.clear();
  const double speed = median_gb_per_s(work, [&] {
    std::vector<std::thread> threads;
    for (std::size_t part = 0; part < streams; ++part) {
      threads.emplace_back([&, part] {
        const bool ok = ::write(near[part].get(), "?", 1) == 1 &&
                        move_share(work, work.here, to, near[part].get(), part, streams, ::readv);
        if (!ok) std::abort();
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  near.clear();
  ::waitpid(child, nullptr, 0);
  return speed;
}

// The owner's process: an engine with one region, until the pipe closes.
[[noreturn]] void engine_child(const Workload& work, const char* transport, bool arena, int report, int until) {
  EngineOptions options;
  options.transports = {transport};
  auto engine = Engine::create(options);
  check(engine.status(), "child");
  if (arena) {
    auto region = (*engine)->allocate(work.bytes(), "bench", kRemoteRead | kRemoteWrite);
    check(region.status(), "allocate");
    std::memset(region->second, 1, work.bytes());
    number_blocks(work, static_cast<std::byte*>(region->second));
  } else {
    std::byte* const memory = map_memory(work.bytes());
    number_blocks(work, memory);
    check((*engine)
              ->register_memory(memory, work.bytes(), "bench", kRemoteRead | kRemoteWrite, MemoryKind::kHost)
              .status(),
          "register");
  }
  const std::string endpoint = (*engine)->endpoint().to_string() + "\n";
  if (::write(report, endpoint.data(), endpoint.size()) < 0) std::abort();
  char byte = 0;
  while (::read(until, &byte, 1) > 0) {
  }
  (*engine)->close();
  ::_exit(0);
}

double bench_engine(const Workload& work, std::byte* to, const char* transport, bool arena, Op op) {
  std::array<int, 2> report{}, until{};
  if (::pipe(report.data()) != 0 || ::pipe(until.data()) != 0) std::abort();
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(until[1]);
    engine_child(work, transport, arena, report[1], until[0]);
  }
  std::array<char, 64> text{};
  const ssize_t got = ::read(report[0], text.data(), text.size());
  if (got <= 1) std::abort();
  EngineOptions options;
  options.transports = {transport};
  options.allow_fallback = false;
  auto engine = Engine::create(options);
  check(engine.status(), "engine");
  auto region = (*engine)->register_memory(to, work.bytes(), "near", kRemoteRead, MemoryKind::kHost);
  check(region.status(), "register");
  auto peer =
      (*engine)->connect(*Endpoint::parse({text.data(), static_cast<std::size_t>(got - 1)}), {}, milliseconds(5000));
  check(peer.status(), "connect");
  std::vector<Piece> pieces;
  const std::uint32_t there = (*peer)->regions().at(0).key.id;
  for (std::uint64_t i = 0; i < work.blocks; ++i) {
    pieces.push_back(
        {region->key.id, there, work.here[i] * work.block_bytes, work.there[i] * work.block_bytes, work.block_bytes});
  }
  auto plan = (*engine)->prepare(*peer, pieces, op);
  check(plan.status(), "prepare");
  const double speed = median_gb_per_s(work, [&] {
    auto transfer = (*engine)->submit(*plan, {});
    check(transfer.status(), "submit");
    (*transfer)->wait(milliseconds(60000));
    check((*transfer)->status(), "transfer");
  });
  if (op == Op::kRead) check_blocks(work, to);
  (*engine)->close();
  for (const int fd : {report[0], report[1], until[0], until[1]}) ::close(fd);
  ::waitpid(child, nullptr, 0);
  return speed;
}

}  // namespace

int main(int argc, char** argv) {
  Workload work;
  if (argc > 1) work.block_bytes = std::strtoull(argv[1], nullptr, 10);
  if (argc > 2) work.blocks = std::strtoull(argv[2], nullptr, 10);
  if (argc > 3) work.rounds = std::strtoull(argv[3], nullptr, 10);
  work.shuffle();
  std::byte* const to = map_memory(work.bytes());
  std::byte* const from = map_memory(work.bytes());
  // Around the others, so that a machine that changes its speed shows.
  const double memcpy_before = bench_memcpy(work, to, from);
  const double stream = std::max(bench_stream(work, to, from, 1), bench_stream(work, to, from, 2));
  struct Row {
    const char* name;
    double speed, reference;
  };
  const std::array<Row, 6> rows{
      Row{"shm foreign read", bench_engine(work, to, "shm", false, Op::kRead), memcpy_before},
      Row{"shm foreign write", bench_engine(work, to, "shm", false, Op::kWrite), memcpy_before},
      Row{"shm arena read", bench_engine(work, to, "shm", true, Op::kRead), memcpy_before},
      Row{"shm arena write", bench_engine(work, to, "shm", true, Op::kWrite), memcpy_before},
      Row{"tcp read", bench_engine(work, to, "tcp", false, Op::kRead), stream},
      Row{"tcp write", bench_engine(work, to, "tcp", false, Op::kWrite), stream},
  };
  const double memcpy_after = bench_memcpy(work, to, from);
  std::printf("%llu x %llu bytes, GB/s\n", static_cast<unsigned long long>(work.blocks),
              static_cast<unsigned long long>(work.block_bytes));
  std::printf("%-20s %6.2f (after: %.2f)\n%-20s %6.2f\n", "memcpy", memcpy_before, memcpy_after, "plain stream",
              stream);
  for (const Row& row : rows) std::printf("%-20s %6.2f  ratio %.2f\n", row.name, row.speed, row.speed / row.reference);
  return 0;
}
