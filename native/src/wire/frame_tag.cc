#include "wire/frame_tag.h"

#include <algorithm>

namespace kvferry::wire {
namespace {

constexpr std::string_view kLabel = "kvferry frames 1";

}  // namespace

FrameTag FrameTagger::next(ByteView header, ByteView body) {
  std::array<std::byte, 9> place{static_cast<std::byte>(sender_)};
  for (std::size_t i = 0; i < 8; ++i) place[1 + i] = static_cast<std::byte>(number_ >> (8 * i));
  ++number_;
  const std::array<ByteView, 3> parts{place, header, body};
  const Digest digest = key_.of(parts);
  FrameTag tag{};
  std::copy_n(digest.begin(), tag.size(), tag.begin());
  return tag;
}

Digest frame_key(std::string_view secret, Role sender, const Hello& hello, const HelloAck& ack) {
  ByteWriter salt(2 * sizeof(Nonce));
  salt.raw(as_byte_view(hello.nonce));
  salt.raw(as_byte_view(ack.nonce));
  ByteWriter info;
  info.raw(as_byte_view(kLabel));
  info.u8(static_cast<std::uint8_t>(sender));
  info.u8(static_cast<std::uint8_t>(hello.purpose));
  info.raw(as_byte_view(hello.self.bytes));
  info.raw(as_byte_view(ack.self.bytes));
  Digest key{};
  hkdf_sha256(salt.take(), as_byte_view(secret), info.take(), key);
  return key;
}

}  // namespace kvferry::wire
