#include "io/ring.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace kvferry {
namespace {

// The same on every architecture that has io_uring.
constexpr long kSysSetup = 425, kSysEnter = 426, kSysRegister = 427;
constexpr std::uint32_t kNeededFeatures = uring::kFeatureSingleMmap | uring::kFeatureNoDrop | uring::kFeatureExtArg;

std::uint32_t load(std::uint32_t* place) { return std::atomic_ref(*place).load(std::memory_order_acquire); }
void store(std::uint32_t* place, std::uint32_t value) {
  std::atomic_ref(*place).store(value, std::memory_order_release);
}

template <typename T>
T* at(void* base, std::size_t offset) {
  return static_cast<T*>(static_cast<void*>(static_cast<std::byte*>(base) + offset));
}

std::uint64_t address(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

Status refusal(int error) {
  if (error == ENOSYS) return {Code::kUnsupported, "this kernel has no io_uring"};
  if (error == EPERM || error == EACCES) {
    std::ifstream file("/proc/sys/kernel/io_uring_disabled");
    int disabled = 0;
    if (file >> disabled && disabled != 0) {
      return {Code::kUnsupported, "io_uring is forbidden: kernel.io_uring_disabled is " + std::to_string(disabled)};
    }
    return {Code::kUnsupported, "io_uring is forbidden here, probably by the container's seccomp profile"};
  }
  return errno_status(Code::kUnsupported, "io_uring cannot be set up", error);
}

int setup(std::uint32_t entries, uring::Params* params) {
  *params = {};
  // Completions are made when the waiting thread is in the kernel anyway, not by interrupting it (Linux 5.19).
  params->flags = uring::kSetupClamp | uring::kSetupCqSize | uring::kSetupCoopTaskrun;
  params->cq_entries = entries * 4;  // each request and the request to cancel it, twice over
  int fd = static_cast<int>(::syscall(kSysSetup, entries, params));
  if (fd >= 0 || errno != EINVAL) return fd;
  *params = {};
  params->flags = uring::kSetupClamp | uring::kSetupCqSize;
  params->cq_entries = entries * 4;
  return static_cast<int>(::syscall(kSysSetup, entries, params));
}

}  // namespace

Result<Ring> Ring::create(std::uint32_t entries) {
  uring::Params params;
  UniqueFd fd(setup(entries, &params));
  if (!fd.valid()) return refusal(errno);
  if ((params.features & kNeededFeatures) != kNeededFeatures) {
    return {Code::kUnsupported, "this kernel's io_uring is too old: Linux 5.11 is needed"};
  }
  Ring ring(std::move(fd), params.sq_entries);
  KVF_RETURN_IF_ERROR(ring.map(params));
  return ring;
}

Status Ring::map(const uring::Params& params) {
  constexpr int kProtection = PROT_READ | PROT_WRITE, kFlags = MAP_SHARED | MAP_POPULATE;
  rings_length_ = std::max<std::size_t>(params.sq_off.array + params.sq_entries * sizeof(std::uint32_t),
                                        params.cq_off.cqes + params.cq_entries * sizeof(uring::Cqe));
  void* rings = ::mmap(nullptr, rings_length_, kProtection, kFlags, fd_.get(), uring::kMapRings);
  if (rings == MAP_FAILED) return errno_status(Code::kUnsupported, "io_uring's rings cannot be mapped", errno);
  rings_ = rings;
  void* sqes = ::mmap(nullptr, entries_ * sizeof(uring::Sqe), kProtection, kFlags, fd_.get(), uring::kMapSqes);
  if (sqes == MAP_FAILED) return errno_status(Code::kUnsupported, "io_uring's entries cannot be mapped", errno);
  sqes_ = static_cast<uring::Sqe*>(sqes);
  sq_head_ = at<std::uint32_t>(rings_, params.sq_off.head);
  sq_tail_ = at<std::uint32_t>(rings_, params.sq_off.tail);
  sq_mask_ = *at<std::uint32_t>(rings_, params.sq_off.ring_mask);
  cq_head_ = at<std::uint32_t>(rings_, params.cq_off.head);
  cq_tail_ = at<std::uint32_t>(rings_, params.cq_off.tail);
  cq_mask_ = *at<std::uint32_t>(rings_, params.cq_off.ring_mask);
  cqes_ = at<uring::Cqe>(rings_, params.cq_off.cqes);
  auto* const order = at<std::uint32_t>(rings_, params.sq_off.array);
  for (std::uint32_t i = 0; i < entries_; ++i) order[i] = i;
  return {};
}

Ring::Ring(Ring&& other) noexcept
    : fd_(std::move(other.fd_)),
      entries_(other.entries_),
      rings_(std::exchange(other.rings_, nullptr)),
      rings_length_(other.rings_length_),
      sqes_(std::exchange(other.sqes_, nullptr)),
      sq_head_(other.sq_head_),
      sq_tail_(other.sq_tail_),
      sq_mask_(other.sq_mask_),
      cq_head_(other.cq_head_),
      cq_tail_(other.cq_tail_),
      cq_mask_(other.cq_mask_),
      cqes_(other.cqes_) {}

Ring::~Ring() {
  if (sqes_ != nullptr) ::munmap(sqes_, entries_ * sizeof(uring::Sqe));
  if (rings_ != nullptr) ::munmap(rings_, rings_length_);
}

uring::Sqe* Ring::next() {
  const std::uint32_t tail = *sq_tail_;  // ours alone
  if (tail - load(sq_head_) == entries_) return nullptr;
  uring::Sqe* const entry = &sqes_[tail & sq_mask_];
  *entry = {};
  store(sq_tail_, tail + 1);  // the kernel looks at it in enter() only
  return entry;
}

bool Ring::has_completion() const { return *cq_head_ != load(cq_tail_); }

int Ring::enter(Deadline until) {
  const std::uint32_t fresh = *sq_tail_ - load(sq_head_);
  const auto left = std::max(until - Clock::now(), Clock::duration(0));
  const bool wait = !has_completion() && left.count() > 0;
  if (fresh == 0 && !wait) return 0;
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
  const uring::Timespec time{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  uring::EnterArgument argument{};
  argument.timespec_address = address(&time);
  const long done = ::syscall(kSysEnter, fd_.get(), fresh, wait ? 1u : 0u, uring::kEnterGetEvents | uring::kEnterExtArg,
                              &argument, sizeof(argument));
  if (done >= 0) return 0;
  return errno == ETIME || errno == EINTR ? 0 : -errno;
}

bool Ring::pop(uring::Cqe* out) {
  const std::uint32_t head = *cq_head_;  // ours alone
  if (head == load(cq_tail_)) return false;
  *out = cqes_[head & cq_mask_];
  store(cq_head_, head + 1);
  return true;
}

namespace {

int call_register(int ring, unsigned what, const void* argument, std::uint32_t size) {
  return ::syscall(kSysRegister, ring, what, argument, size) < 0 ? -errno : 0;
}

}  // namespace

int Ring::register_buffer_table(std::uint32_t places) {
  const std::vector<iovec> none(places);
  const uring::ResourceRegister table{places, 0, 0, address(none.data()), 0};
  return call_register(fd_.get(), uring::kRegisterBuffers2, &table, sizeof(table));
}

int Ring::register_file_table(std::uint32_t places) {
  const std::vector<int> none(places, -1);
  return call_register(fd_.get(), uring::kRegisterFiles, none.data(), places);
}

int Ring::update_buffer(std::uint32_t place, const iovec& memory) const {
  const uring::ResourceUpdate update{place, 0, address(&memory), 0, 1, 0};
  return call_register(fd_.get(), uring::kRegisterBuffersUpdate, &update, sizeof(update));
}

int Ring::update_file(std::uint32_t place, int fd) const {
  const uring::FilesUpdate update{place, 0, address(&fd)};
  return call_register(fd_.get(), uring::kRegisterFilesUpdate, &update, 1);
}

}  // namespace kvferry
