// What proves that a frame comes from the peer of the handshake, unchanged and in its place: a tag behind its body.
// Pure: no sockets, no clock.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "base/sha256.h"
#include "wire/handshake.h"
#include "wire/messages.h"

namespace kvferry::wire {

inline constexpr std::size_t kFrameTagBytes = 16;
using FrameTag = std::array<std::uint8_t, kFrameTagBytes>;

// Tags of the frames that one side sends on one connection, in their order. The same object makes them on that side and
// checks them on the other. Used by one thread at a time.
class FrameTagger {
 public:
  FrameTagger(Role sender, const Digest& key) : sender_(sender), key_(as_byte_view(key)) {}

  // First 16 bytes of HMAC-SHA-256(key, sender (1 byte) || number of the frame, from 0 (8 bytes) || header || body).
  FrameTag next(ByteView header, ByteView body);

 private:
  const Role sender_;
  HmacSha256 key_;
  std::uint64_t number_ = 0;
};

// The key for what `sender` sends: HKDF-SHA-256 with both nonces as salt, bound to sender, purpose and both node ids.
Digest frame_key(std::string_view secret, Role sender, const Hello& hello, const HelloAck& ack);

}  // namespace kvferry::wire
