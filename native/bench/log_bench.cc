// The store's log beside plain direct requests of the same size to a file of the same directory: appends in batches,
// reads in batches and one by one, each in turn in every round. Median GB/s of the rounds; "ratio" is log to plain.
//   log_bench DIRECTORY [ROUNDS [MIB_PER_ROUND]]      default 7 128
// The plain requests are made by the same queue (io_uring where possible), as many at once as the log has, on a file
// that was written before.
#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "io/aligned_buffer.h"
#include "io/request_pump.h"
#include "store/log/disk.h"
#include "store/log/log.h"

namespace {

using namespace kvferry;         // NOLINT: a program of one file
using namespace kvferry::store;  // NOLINT

constexpr std::uint64_t kMostRequest = 1 << 20;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

void must(const Status& status) {
  if (!status.ok()) fail(status.to_string());
}

double cpu_seconds() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Sample {
  double gb_per_s = 0, cpu_s_per_gb = 0;
};

template <typename Work>
Sample measure(std::uint64_t bytes, const Work& work) {
  const auto start = Clock::now();
  const double cpu = cpu_seconds();
  work();
  const std::chrono::duration<double> took = Clock::now() - start;
  const double gb = static_cast<double>(bytes) / 1e9;
  return {gb / took.count(), (cpu_seconds() - cpu) / gb};
}

Sample median(std::vector<Sample> samples) {
  std::sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) { return a.gb_per_s < b.gb_per_s; });
  return samples[samples.size() / 2];
}

class Plain final : private IoPartHandler {
 public:
  Plain(const std::string& path, std::uint64_t bytes) : disk_(log::real_disk(true)), queue_(disk_->make_queue()) {
    auto file = disk_->create(path, bytes, true);
    must(file.status());
    file_ = *std::move(file);
  }
  ~Plain() { queue_->forget_file(file_.fd.get()); }
  Plain(const Plain&) = delete;
  Plain& operator=(const Plain&) = delete;

  void run(IoRequest::Kind kind, std::span<std::byte> memory, std::uint64_t size) {
    const std::uint64_t request = std::min(size, kMostRequest);
    RequestPump pump(*queue_, bounce_, deadline_in(milliseconds(60000)), *this);
    for (std::uint64_t at = 0; at < memory.size(); at += request) {
      pump.start({kind, file_.fd.get(), memory.data() + at, static_cast<std::uint32_t>(request), at});
    }
  }

 private:
  void part_ended(const IoPart&, const Status& status) override { must(status); }

  std::shared_ptr<log::Disk> disk_;
  std::shared_ptr<IoQueue> queue_;
  BounceBuffers bounce_;
  log::LogFile file_;
};

struct Row {
  std::vector<Sample> plain_write, append, plain_read, read, read_one;
};

class Bench {
 public:
  Bench(const std::string& directory, std::uint64_t bytes)
      : bytes_(bytes), memory_(bytes), plain_(directory + "/plain", bytes) {
    for (std::uint64_t at = 0; at + 8 <= bytes; at += 8) std::memcpy(memory_.data() + at, &at, sizeof(at));
    LogOptions options;
    options.directory = directory + "/log";
    options.capacity = 16ull << 30;  // of which little is ever used: what was read is erased
    auto opened = Log::open(options, [](const LogRecord&, const LogPlace&) {});
    must(opened.status());
    log_ = *std::move(opened);
  }

  const Log& log() const { return *log_; }

  void round(std::uint64_t size, Row* row) {
    const std::uint64_t count = bytes_ / size;
    std::vector<std::span<const std::byte>> pieces(count);
    std::vector<LogWrite> writes(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      pieces[i] = memory_.span().subspan(i * size, size);
      writes[i].record = {{next_++, size}, "a key of some forty bytes, as they are", size, {}, {}};
      writes[i].pieces = std::span(&pieces[i], 1);
    }
    const Deadline deadline = deadline_in(milliseconds(120000));
    row->plain_write.push_back(measure(bytes_, [&] { plain_.run(IoRequest::Kind::kWrite, memory_.span(), size); }));
    std::vector<Result<LogPlace>> places;
    row->append.push_back(measure(bytes_, [&] { places = log_->append_batch(writes, deadline); }));
    for (const auto& place : places) must(place.status());
    row->plain_read.push_back(measure(bytes_, [&] { plain_.run(IoRequest::Kind::kRead, memory_.span(), size); }));
    std::vector<LogRead> reads;
    std::vector<LogErase> erases;
    for (std::uint64_t i = 0; i < count; ++i) {
      reads.push_back({*places[i], writes[i].record.id, 0, memory_.span().subspan(i * size, size)});
      erases.push_back({writes[i].record.id, *places[i]});
    }
    row->read.push_back(measure(bytes_, [&] {
      for (const Status& status : log_->read_batch(reads, deadline)) must(status);
    }));
    const std::uint64_t some = std::max<std::uint64_t>(1, count / 8);
    row->read_one.push_back(measure(some * size, [&] {
      for (std::uint64_t i = 0; i < some; ++i) must(log_->read_batch(std::span(&reads[i], 1), deadline).front());
    }));
    for (const Status& status : log_->erase_batch(erases, deadline)) must(status);
  }

 private:
  const std::uint64_t bytes_;
  AlignedBuffer memory_;
  Plain plain_;
  std::unique_ptr<Log> log_;
  std::uint64_t next_ = 1;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) fail("usage: log_bench DIRECTORY [ROUNDS [MIB_PER_ROUND]]");
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  const std::uint64_t bytes = (argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 128) << 20;
  const std::string directory = std::string(argv[1]) + "/log_bench";
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  {
    Bench bench(directory, bytes);
    std::printf("%s\n", bench.log().note().c_str());
    std::printf("%9s | %11s %11s %5s %9s | %10s %10s %5s %9s | %9s\n", "object", "plain write", "append", "ratio",
                "CPU s/GB", "plain read", "read", "ratio", "CPU s/GB", "one by one");
    for (const std::uint64_t size : {4096ull, 65536ull, 131072ull, 262144ull, 1ull << 20, 4ull << 20}) {
      Row row;
      for (int i = 0; i < rounds; ++i) bench.round(size, &row);
      const Sample pw = median(row.plain_write), a = median(row.append), pr = median(row.plain_read);
      const Sample r = median(row.read), one = median(row.read_one);
      std::printf("%9llu | %11.2f %11.2f %5.2f %9.3f | %10.2f %10.2f %5.2f %9.3f | %9.2f\n",
                  static_cast<unsigned long long>(size), pw.gb_per_s, a.gb_per_s, a.gb_per_s / pw.gb_per_s,
                  a.cpu_s_per_gb, pr.gb_per_s, r.gb_per_s, r.gb_per_s / pr.gb_per_s, r.cpu_s_per_gb, one.gb_per_s);
      std::fflush(stdout);
    }
    const LogUsage usage = bench.log().usage();
    std::printf("written per byte stored: %.3f\n",
                static_cast<double>(usage.written_bytes) / static_cast<double>(usage.stored_bytes));
  }
  std::filesystem::remove_all(directory);
  return 0;
}
