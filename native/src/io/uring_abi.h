// The part of the kernel's io_uring interface that we use. It is fixed for ever (linux/io_uring.h); written down here,
// so that neither a library nor new kernel headers are needed.
#pragma once

#include <cstdint>

namespace kvferry::uring {

struct SqOffsets {
  std::uint32_t head, tail, ring_mask, ring_entries, flags, dropped, array, reserved;
  std::uint64_t user_address;
};
struct CqOffsets {
  std::uint32_t head, tail, ring_mask, ring_entries, overflow, cqes, flags, reserved;
  std::uint64_t user_address;
};
struct Params {
  std::uint32_t sq_entries, cq_entries, flags, sq_thread_cpu, sq_thread_idle, features, wq_fd, reserved[3];
  SqOffsets sq_off;
  CqOffsets cq_off;
};
static_assert(sizeof(Params) == 120);

struct Sqe {
  std::uint8_t opcode, flags;
  std::uint16_t priority;
  std::int32_t fd;
  std::uint64_t offset;
  std::uint64_t address;
  std::uint32_t length;
  std::uint32_t op_flags;
  std::uint64_t user_data;
  std::uint16_t buffer_index;
  std::uint16_t personality;
  std::uint32_t reserved[5];
};
static_assert(sizeof(Sqe) == 64);

struct Cqe {
  std::uint64_t user_data;
  std::int32_t result;
  std::uint32_t flags;
};
static_assert(sizeof(Cqe) == 16);

struct Timespec {
  std::int64_t seconds, nanoseconds;
};
struct EnterArgument {
  std::uint64_t signal_mask;
  std::uint32_t signal_mask_size, reserved;
  std::uint64_t timespec_address;
};
struct ResourceRegister {
  std::uint32_t count, flags;
  std::uint64_t reserved, data_address, tags_address;
};
static_assert(sizeof(ResourceRegister) == 32);
struct ResourceUpdate {
  std::uint32_t offset, reserved;
  std::uint64_t data_address, tags_address;
  std::uint32_t count, reserved2;
};
static_assert(sizeof(ResourceUpdate) == 32);
struct FilesUpdate {
  std::uint32_t offset, reserved;
  std::uint64_t fds_address;
};

inline constexpr std::uint8_t kOpFsync = 3, kOpReadFixed = 4, kOpWriteFixed = 5, kOpAsyncCancel = 14, kOpRead = 22,
                              kOpWrite = 23;
inline constexpr std::uint8_t kSqeFixedFile = 1;
inline constexpr std::uint32_t kFsyncDataOnly = 1;
inline constexpr std::uint32_t kSetupCqSize = 1u << 3, kSetupClamp = 1u << 4, kSetupCoopTaskrun = 1u << 8;
inline constexpr std::uint32_t kFeatureSingleMmap = 1u << 0, kFeatureNoDrop = 1u << 1, kFeatureExtArg = 1u << 8;
inline constexpr std::uint32_t kEnterGetEvents = 1u << 0, kEnterExtArg = 1u << 3;
inline constexpr std::uint64_t kMapRings = 0, kMapSqes = 0x10000000;
inline constexpr unsigned kRegisterFiles = 2, kRegisterFilesUpdate = 6, kRegisterBuffers2 = 15,
                          kRegisterBuffersUpdate = 16;

}  // namespace kvferry::uring
