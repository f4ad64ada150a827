// Copies between two processes of one host through an engine, beside the raw calls that can do the same: memcpy and
// plain non-temporal stores on a shared mapping, process_vm_readv and process_vm_writev with 64 and 128 blocks a call.
//   copy_bench [ROUNDS [WORKING_SET_MIB [LANES]]]      default 9 256 0 (automatic)
// Everything is timed in turn in each round, on the same scattered blocks. Prints medians of wall and CPU time; only
// ratios within one run count. "ratio" is to the best raw way of that table, "CPU ratio" to that way's CPU time.
#include <sys/mman.h>
#include <sys/resource.h>
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
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kvferry/engine.h"

namespace {

using namespace kvferry;  // NOLINT: a program of one file

std::uint64_t working_set = 256u << 20;
std::uint32_t lanes = 0;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

void check(const Status& status, const char* what) {
  if (!status.ok()) fail(std::string(what) + ": " + status.to_string());
}

std::byte* map_memory(int flags, int fd) {
  void* const memory = ::mmap(nullptr, working_set, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (memory == MAP_FAILED) fail("mmap");
  if (fd < 0) ::madvise(memory, working_set, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

// A number in every 4 KiB, from which a misplaced block shows.
void number_pages(std::byte* memory) {
  for (std::uint64_t at = 0; at < working_set; at += 4096) std::memcpy(memory + at, &at, sizeof(at));
}

struct Owner {  // what the child tells
  std::array<char, 64> endpoint{};
  std::uint64_t foreign_address = 0;
  std::uint32_t arena_region = 0, foreign_region = 0;
};

[[noreturn]] void own_memory(int report, int until) {
  EngineOptions options;
  options.transports = {"shm"};
  auto engine = Engine::create(options);
  check(engine.status(), "owner");
  const std::uint8_t access = kRemoteRead | kRemoteWrite;
  auto arena = (*engine)->allocate(working_set, "arena", access);
  check(arena.status(), "allocate");
  std::byte* const foreign = map_memory(MAP_PRIVATE | MAP_ANONYMOUS, -1);
  number_pages(static_cast<std::byte*>(arena->second));
  number_pages(foreign);
  auto region = (*engine)->register_memory(foreign, working_set, "foreign", access, MemoryKind::kHost);
  check(region.status(), "register");
  Owner owner;
  (*engine)->endpoint().to_string().copy(owner.endpoint.data(), owner.endpoint.size() - 1);
  owner.foreign_address = reinterpret_cast<std::uintptr_t>(foreign);
  owner.arena_region = arena->first.key.id;
  owner.foreign_region = region->key.id;
  if (::write(report, &owner, sizeof(owner)) != sizeof(owner)) fail("pipe");
  char byte = 0;
  while (::read(until, &byte, 1) > 0) {
  }
  (*engine)->close();
  ::_exit(0);
}

struct Blocks {  // one operation: block here[i] of ours, block there[i] of the owner's
  std::span<const std::uint64_t> here, there;
};

using Move = std::function<void(std::size_t operation, const Blocks&)>;

struct Way {
  std::string name;
  bool raw = false;
  Move move;
  std::vector<double> wall, cpu;  // seconds per GB
};

void raw_memcpy(std::byte* to, const std::byte* from, std::size_t length) { std::memcpy(to, from, length); }

#if defined(__x86_64__)
__attribute__((target("avx2"))) void raw_streaming(std::byte* to, const std::byte* from, std::size_t length) {
  for (std::size_t at = 0; at < length; at += 32) {
    const auto* const source = static_cast<const __m256i*>(static_cast<const void*>(from + at));
    auto* const target = static_cast<__m256i*>(static_cast<void*>(to + at));
    _mm256_stream_si256(target, _mm256_loadu_si256(source));
  }
  _mm_sfence();
}
#endif

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * double(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(pid_t owner_pid, const Owner& owner, std::byte* shared, std::uint64_t rounds)
      : pid_(owner_pid), owner_(owner), shared_(shared), rounds_(rounds) {
    EngineOptions options;
    options.transports = {"shm"};
    options.allow_fallback = false;
    if (lanes != 0) options.shm_lanes = lanes;
    auto engine = Engine::create(options);
    check(engine.status(), "engine");
    engine_ = std::move(engine).value();
    local_ = map_memory(MAP_PRIVATE | MAP_ANONYMOUS, -1);
    std::memset(local_, 1, working_set);
    auto region = engine_->register_memory(local_, working_set, "local", kRemoteRead, MemoryKind::kHost);
    check(region.status(), "register");
    local_region_ = region->key.id;
    auto peer = engine_->connect(*Endpoint::parse(owner_.endpoint.data()), {}, milliseconds(5000));
    check(peer.status(), "connect");
    peer_ = *peer;
  }

  void run(std::uint64_t block_bytes, std::uint64_t count) {
    block_bytes_ = block_bytes;
    count_ = count;
    const std::uint64_t blocks = working_set / block_bytes;
    here_.resize(blocks);
    std::iota(here_.begin(), here_.end(), 0);
    there_ = here_;
    std::shuffle(here_.begin(), here_.end(), std::mt19937(1));
    std::shuffle(there_.begin(), there_.end(), std::mt19937(2));
    operations_ = std::min<std::uint64_t>(blocks / count, 64);
    for (const Op op : {Op::kRead, Op::kWrite}) {
      measure(op, "arena", {copying("memcpy", op, raw_memcpy), streaming(op), engine_way(op, owner_.arena_region)});
      measure(op, "foreign", {calling(op, 64), calling(op, 128), engine_way(op, owner_.foreign_region)});
    }
  }

 private:
  Blocks blocks_of(std::size_t operation) const {
    const std::size_t first = operation * count_;
    return {std::span(here_).subspan(first, count_), std::span(there_).subspan(first, count_)};
  }

  Way copying(const char* name, Op op, void (*copy)(std::byte*, const std::byte*, std::size_t)) {
    const auto move = [this, op, copy](std::size_t, const Blocks& blocks) {
      for (std::size_t i = 0; i < blocks.here.size(); ++i) {
        std::byte* const near = local_ + blocks.here[i] * block_bytes_;
        std::byte* const far = shared_ + blocks.there[i] * block_bytes_;
        if (op == Op::kRead) {
          copy(near, far, block_bytes_);
        } else {
          copy(far, near, block_bytes_);
        }
      }
    };
    return {name, true, move, {}, {}};
  }

  Way streaming(Op op) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") != 0) return copying("non-temporal", op, raw_streaming);
#endif
    return copying("memcpy again", op, raw_memcpy);
  }

  Way calling(Op op, std::size_t per_call) {
    const auto move = [this, op, per_call](std::size_t, const Blocks& blocks) {
      std::array<iovec, 128> near{}, far{};
      const auto call = op == Op::kRead ? ::process_vm_readv : ::process_vm_writev;
      for (std::size_t first = 0; first < blocks.here.size(); first += per_call) {
        const std::size_t count = std::min(per_call, blocks.here.size() - first);
        for (std::size_t i = 0; i < count; ++i) {
          near[i] = {local_ + blocks.here[first + i] * block_bytes_, block_bytes_};
          const std::uint64_t address = owner_.foreign_address + blocks.there[first + i] * block_bytes_;
          far[i] = {reinterpret_cast<void*>(address), block_bytes_};  // NOLINT: an address over there
        }
        const auto wanted = static_cast<ssize_t>(count * block_bytes_);
        if (call(pid_, near.data(), count, far.data(), count, 0) != wanted) fail("process_vm_readv or writev");
      }
    };
    return {std::to_string(per_call) + " blocks a call", true, move, {}, {}};
  }

  Way engine_way(Op op, std::uint32_t remote_region) {
    auto plans = std::make_shared<std::vector<std::shared_ptr<const Plan>>>();
    for (std::size_t operation = 0; operation < operations_; ++operation) {
      const Blocks blocks = blocks_of(operation);
      std::vector<Piece> pieces;
      for (std::size_t i = 0; i < count_; ++i) {
        pieces.push_back({local_region_, remote_region, blocks.here[i] * block_bytes_, blocks.there[i] * block_bytes_,
                          block_bytes_});
      }
      auto plan = engine_->prepare(peer_, pieces, op);
      check(plan.status(), "prepare");
      plans->push_back(*plan);
    }
    const auto move = [this, plans](std::size_t operation, const Blocks&) {
      auto transfer = engine_->execute((*plans)[operation], {});
      check(transfer.status(), "execute");
      check((*transfer)->status(), "transfer");
    };
    return {"engine", false, move, {}, {}};
  }

  void time_once(Way* way) {
    constexpr std::uint64_t kBurstBytes = 64u << 20;
    const std::uint64_t operation_bytes = block_bytes_ * count_;
    const std::uint64_t repeats = std::clamp<std::uint64_t>(kBurstBytes / operation_bytes, 1, 2000);
    const double gigabytes = static_cast<double>(repeats * operation_bytes) / 1e9;
    const double cpu_before = cpu_seconds();
    const auto begin = Clock::now();
    for (std::uint64_t i = 0; i < repeats; ++i) {
      const std::size_t operation = next_++ % operations_;
      way->move(operation, blocks_of(operation));
    }
    way->wall.push_back(std::chrono::duration<double>(Clock::now() - begin).count() / gigabytes);
    way->cpu.push_back((cpu_seconds() - cpu_before) / gigabytes);
  }

  void check_blocks() const {
    for (std::size_t operation = 0; operation < operations_; ++operation) {
      const Blocks blocks = blocks_of(operation);
      for (std::size_t i = 0; i < count_; ++i) {
        std::uint64_t number = 0;
        std::memcpy(&number, local_ + blocks.here[i] * block_bytes_, sizeof(number));
        if (number != blocks.there[i] * block_bytes_) fail("a block is not the one that was asked for");
      }
    }
  }

  void measure(Op op, const char* memory, std::vector<Way> ways) {
    std::mt19937 random(3);
    std::vector<std::size_t> order(ways.size());
    std::iota(order.begin(), order.end(), 0);
    for (std::uint64_t round = 0; round <= rounds_; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      for (const std::size_t i : order) time_once(&ways[i]);
      if (round > 0) continue;
      for (Way& way : ways) way.wall.clear(), way.cpu.clear();  // that one was to warm up
    }
    if (op == Op::kRead) {
      std::memset(local_, 1, working_set);
      for (std::size_t i = 0; i < operations_; ++i) ways.back().move(i, blocks_of(i));
      check_blocks();
    }
    const Way* best = nullptr;
    for (const Way& way : ways) {
      if (way.raw && (best == nullptr || median(way.wall) < median(best->wall))) best = &way;
    }
    for (const Way& way : ways) {
      std::printf("%-7s %-5s %7llu x %-5llu %-18s %7.2f GB/s %6.3f CPU s/GB  ratio %.2f  CPU ratio %.2f\n", memory,
                  op == Op::kRead ? "read" : "write", static_cast<unsigned long long>(block_bytes_),
                  static_cast<unsigned long long>(count_), way.name.c_str(), 1 / median(way.wall), median(way.cpu),
                  median(best->wall) / median(way.wall), median(way.cpu) / median(best->cpu));
    }
    std::fflush(stdout);
  }

  const pid_t pid_;
  const Owner owner_;
  std::byte* const shared_;  // a memfd with the pages that memfds have by default
  const std::uint64_t rounds_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<Peer> peer_;
  std::byte* local_ = nullptr;
  std::uint32_t local_region_ = 0;
  std::uint64_t block_bytes_ = 0, count_ = 0, operations_ = 0, next_ = 0;
  std::vector<std::uint64_t> here_, there_;
};

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t rounds = 9;
  if (argc > 1) rounds = std::strtoull(argv[1], nullptr, 10);
  if (argc > 2) working_set = std::strtoull(argv[2], nullptr, 10) << 20;
  if (argc > 3) lanes = static_cast<std::uint32_t>(std::strtoul(argv[3], nullptr, 10));
  const int fd = ::memfd_create("copy_bench", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(working_set)) != 0) fail("memfd");
  std::byte* const shared = map_memory(MAP_SHARED, fd);
  number_pages(shared);
  std::array<int, 2> report{}, until{};
  if (::pipe(report.data()) != 0 || ::pipe(until.data()) != 0) fail("pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(until[1]);
    own_memory(report[1], until[0]);
  }
  Owner owner;
  if (::read(report[0], &owner, sizeof(owner)) != sizeof(owner)) fail("the owner ended");
  {
    Bench bench(child, owner, shared, rounds);
    for (const auto& [block_bytes, count] : std::initializer_list<std::pair<std::uint64_t, std::uint64_t>>{
             {4096, 1}, {4096, 128}, {4096, 1024}, {65536, 128}, {65536, 1024}, {1u << 20, 16}, {1u << 20, 128}}) {
      bench.run(block_bytes, count);
    }
  }
  ::close(until[1]);
  ::waitpid(child, nullptr, 0);
  return 0;
}
