#include "fake_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

namespace fake_device {
namespace {

struct Memory {  // a device allocation, or an import of one
  int device = 0;
  std::size_t length = 0;
  void* shadow = nullptr;  // where this library reaches the bytes
  int fd = -1;
};

struct State {
  std::mutex mutex;
  std::map<std::uintptr_t, Memory> memory;     // by the address given out
  std::map<std::uintptr_t, std::size_t> host;  // pinned memory, by address
};

State& state() {
  static State* const one = new State;  // copies may still run when the process ends
  return *one;
}

const char* setting(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// The bytes behind an address, device memory or any other. Null: a range that leaves its allocation.
std::byte* reach(std::uintptr_t address, std::size_t length) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  auto next = all.memory.upper_bound(address);
  if (next == all.memory.begin()) return reinterpret_cast<std::byte*>(address);
  const auto& [base, memory] = *std::prev(next);
  const std::size_t offset = address - base;
  if (offset >= memory.length) return reinterpret_cast<std::byte*>(address);
  if (length > memory.length - offset) return nullptr;
  return static_cast<std::byte*>(memory.shadow) + offset;
}

// Maps a memfd twice: once unreachable, for the address to give out, once for ourselves.
void* adopt(int fd, int device, std::size_t length) {
  void* const given = ::mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* const shadow = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (given == MAP_FAILED || shadow == MAP_FAILED) return nullptr;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  all.memory[reinterpret_cast<std::uintptr_t>(given)] = {device, length, shadow, fd};
  return given;
}

class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  ~Stream() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void add(std::function<void()> job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }
  void drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return jobs_.empty() && !busy_; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ended_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      busy_ = true;
      lock.unlock();
      job();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool busy_ = false;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace

bool fails(const char* call) {
  if (const char* log = setting("FAKE_DEVICE_LOG"); *log != '\0') {
    const int fd = ::open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    const std::string line = std::string(call) + "\n";
    if (fd >= 0 && ::write(fd, line.data(), line.size()) < 0) std::perror("fake device log");
    if (fd >= 0) ::close(fd);
  }
  return std::strcmp(setting("FAKE_DEVICE_FAIL"), call) == 0;
}

int device_count() {
  const char* count = setting("FAKE_DEVICE_COUNT");
  return *count != '\0' ? std::atoi(count) : kDevices;
}

Range find(std::uintptr_t address) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  auto next = all.memory.upper_bound(address);
  if (next == all.memory.begin()) return {};
  const auto& [base, memory] = *std::prev(next);
  if (address - base >= memory.length) return {};
  return {memory.device, base, memory.length};
}

Range find_host(std::uintptr_t address) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  auto next = all.host.upper_bound(address);
  if (next == all.host.begin()) return {};
  const auto& [base, length] = *std::prev(next);
  return address - base < length ? Range{-1, base, length} : Range{};
}

void* allocate(int device, std::size_t length) {
  const int fd = ::memfd_create("fake_device", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(length)) != 0) return nullptr;
  return adopt(fd, device, length);
}

bool release(void* memory) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto found = all.memory.find(reinterpret_cast<std::uintptr_t>(memory));
  if (found == all.memory.end()) return false;
  ::munmap(memory, found->second.length);
  ::munmap(found->second.shadow, found->second.length);
  ::close(found->second.fd);
  all.memory.erase(found);
  return true;
}

void* allocate_host(std::size_t length) {
  void* const memory = std::aligned_alloc(4096, (length + 4095) / 4096 * 4096);
  State& all = state();
  const std::lock_guard lock(all.mutex);
  all.host[reinterpret_cast<std::uintptr_t>(memory)] = length;
  return memory;
}

bool release_host(void* memory) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  if (all.host.erase(reinterpret_cast<std::uintptr_t>(memory)) == 0) return false;
  std::free(memory);
  return true;
}

void* create_stream() { return new Stream; }
void destroy_stream(void* stream) { delete static_cast<Stream*>(stream); }

bool copy(void* stream, void* to, const void* from, std::size_t length) {
  std::byte* const target = reach(reinterpret_cast<std::uintptr_t>(to), length);
  const std::byte* const source = reach(reinterpret_cast<std::uintptr_t>(from), length);
  if (target == nullptr || source == nullptr) return false;
  static_cast<Stream*>(stream)->add([=] {
    const int delay_us = std::atoi(setting("FAKE_DEVICE_COPY_US"));
    if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    std::memcpy(target, source, length);
  });
  return true;
}

void synchronize(void* stream) { static_cast<Stream*>(stream)->drain(); }

void* create_event() { return new std::atomic<int>(0); }  // how many records are not reached yet
void destroy_event(void* event) { delete static_cast<std::atomic<int>*>(event); }

void record(void* event, void* stream) {
  auto* const open = static_cast<std::atomic<int>*>(event);
  open->fetch_add(1);
  static_cast<Stream*>(stream)->add([open] { open->fetch_sub(1); });
}

bool reached(void* event) { return static_cast<std::atomic<int>*>(event)->load() == 0; }

std::string export_memory(void* memory) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto found = all.memory.find(reinterpret_cast<std::uintptr_t>(memory));
  if (found == all.memory.end()) return {};
  return std::to_string(::getpid()) + " " + std::to_string(found->second.fd) + " " +
         std::to_string(found->second.length);
}

void* import_memory(const std::string& name) {
  int pid = 0, number = 0;
  std::size_t length = 0;
  if (std::sscanf(name.c_str(), "%d %d %zu", &pid, &number, &length) != 3) return nullptr;  // NOLINT: a test's own text
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(number);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  return fd < 0 ? nullptr : adopt(fd, 0, length);
}

bool end_import(void* memory) { return release(memory); }

}  // namespace fake_device
