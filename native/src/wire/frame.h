// The 24-byte header in front of everything on a connection. docs/wire-format.md has the byte table.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/limits.h"
#include "base/socket.h"
#include "kvferry/status.h"

namespace kvferry {

inline constexpr std::uint32_t kFrameMagic = 0x3146564B;  // "KVF1" in memory order
inline constexpr std::uint8_t kWireVersion = 1;
inline constexpr std::size_t kFrameHeaderBytes = 24;

enum class FrameType : std::uint8_t {
  kHello = 1,
  kHelloAck = 2,
  kAuth = 3,
  kError = 4,
  kRegionsRequest = 5,
  kRegions = 6,
  kMessage = 7,
  kPing = 8,
  kPong = 9,
  kGoodbye = 10,
  kRead = 11,
  kReadData = 12,
  kWrite = 13,
  kWriteAck = 14,
  kShmAttached = 15,
  kArenaRequest = 16,
  kArena = 17,
  kFence = 18,
  kFenced = 19,
};
std::string_view frame_type_name(FrameType type);
std::size_t max_body_bytes(FrameType type);

enum FrameFlag : std::uint16_t {
  kFlagChecksum = 1,     // READ: wanted; READ_DATA and WRITE: present
  kFlagForgetLists = 2,  // READ and WRITE: first empty all list slots of the connection
};

struct FrameHeader {
  FrameType type = FrameType::kPing;
  std::uint16_t flags = 0;
  std::uint32_t body_bytes = 0;
  std::uint32_t body_crc32c = 0;
  std::uint64_t request_id = 0;

  std::array<std::byte, kFrameHeaderBytes> encode() const;
  // kProtocolError: bad magic, version, type, flags for the type, or a body larger than the type or `max_body` allows.
  static Result<FrameHeader> decode(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                    std::size_t max_body = kMaxBodyBytes);
  Status check_body(ByteView body) const;  // length and checksum: kProtocolError, kDataCorrupt
};

struct Frame {
  FrameHeader header;
  Bytes body;
  std::vector<UniqueFd> fds;  // unix sockets only, see recv_frame_with_fds
};

FrameHeader frame_header(FrameType type, std::uint64_t request_id, ByteView body, std::uint16_t flags);
// Header and body in one piece of memory. The body must be within max_body_bytes(type).
Bytes encode_frame(FrameType type, std::uint64_t request_id, ByteView body, std::uint16_t flags = 0);

// The same in memory that is used again: end_frame() fills in the room that begin_frame() left for the header.
ByteWriter begin_frame(Bytes&& reuse);
Bytes end_frame(ByteWriter&& writer, FrameType type, std::uint64_t request_id, std::uint16_t flags);

Status send_frame(int fd, FrameType type, std::uint64_t request_id, ByteView body, const Wait& wait,
                  std::uint16_t flags = 0);
// Reads header and body, both checked. Raw payload, where the type has one, is left in the stream. A body above
// `max_body`, whatever its type allows, is refused before memory is taken for it.
Result<Frame> recv_frame(int fd, const Wait& wait, std::size_t max_body = kMaxBodyBytes);

Status send_frame_with_fds(int fd, FrameType type, std::uint64_t request_id, ByteView body, std::span<const int> fds,
                           const Wait& wait);
Result<Frame> recv_frame_with_fds(int fd, std::size_t max_fds, const Wait& wait);

}  // namespace kvferry
