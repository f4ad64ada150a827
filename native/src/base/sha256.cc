#include "base/sha256.h"

#include <algorithm>
#include <cstring>

namespace kvferry {
namespace {

Digest digest_of(const Sha256State& state) {
  Digest out{};
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  return out;
}

}  // namespace

void Sha256::update(ByteView bytes) {
  const std::size_t used = total_bytes_ % 64;
  total_bytes_ += bytes.size();
  if (used > 0) {
    const std::size_t take = std::min(bytes.size(), 64 - used);
    std::copy_n(bytes.begin(), take, pending_.begin() + static_cast<std::ptrdiff_t>(used));
    if (used + take < 64) return;
    sha256_blocks(state_, pending_.data(), 1);
    bytes = bytes.subspan(take);
  }
  const std::size_t blocks = bytes.size() / 64;
  if (blocks > 0) sha256_blocks(state_, bytes.data(), blocks);
  std::ranges::copy(bytes.subspan(64 * blocks), pending_.begin());
}

Digest Sha256::finish() {
  const std::uint64_t bits = total_bytes_ * 8;
  const std::size_t used = total_bytes_ % 64;
  const std::size_t zeros = (used < 56 ? 55 - used : 119 - used);
  std::array<std::byte, 64 + 9> tail{};
  tail[0] = std::byte{0x80};
  for (std::size_t i = 0; i < 8; ++i) tail[1 + zeros + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  update(ByteView(tail).first(1 + zeros + 8));
  return digest_of(state_);
}

Digest sha256(ByteView bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

Digest sha256(ByteView first, ByteView second) {
  const std::size_t length = first.size() + second.size();
  if (length > kSha256ShortBytes) {
    Sha256 hash;
    hash.update(first);
    hash.update(second);
    return hash.finish();
  }
  std::array<std::byte, 128> padded{};  // the message as the standard pads it: one block or two
  if (!first.empty()) std::memcpy(padded.data(), first.data(), first.size());
  if (!second.empty()) std::memcpy(padded.data() + first.size(), second.data(), second.size());
  padded[length] = std::byte{0x80};
  const std::size_t blocks = length < 56 ? 1 : 2;
  padded[64 * blocks - 2] = static_cast<std::byte>(length * 8 >> 8);
  padded[64 * blocks - 1] = static_cast<std::byte>(length * 8);
  Sha256State state = kSha256Start;
  sha256_blocks(state, padded.data(), blocks);
  return digest_of(state);
}

HmacSha256::HmacSha256(ByteView key) {
  const Digest hashed = key.size() > 64 ? sha256(key) : Digest{};
  const ByteView used = key.size() > 64 ? as_byte_view(hashed) : key;
  std::array<std::byte, 64> inner_pad{};
  std::ranges::copy(used, inner_pad.begin());
  std::array<std::byte, 64> outer_pad = inner_pad;
  for (std::byte& byte : inner_pad) byte ^= std::byte{0x36};
  for (std::byte& byte : outer_pad) byte ^= std::byte{0x5c};
  inner_.update(inner_pad);
  outer_.update(outer_pad);
}

Digest HmacSha256::of(std::span<const ByteView> parts) const {
  Sha256 inner = inner_;
  for (const ByteView part : parts) inner.update(part);
  Sha256 outer = outer_;
  outer.update(as_byte_view(inner.finish()));
  return outer.finish();
}

Digest hmac_sha256(ByteView key, std::span<const ByteView> parts) { return HmacSha256(key).of(parts); }

void hkdf_sha256(ByteView salt, ByteView secret, ByteView info, std::span<std::uint8_t> out) {
  const Digest extracted = hmac_sha256(salt, {&secret, 1});
  const HmacSha256 expand(as_byte_view(extracted));
  Digest previous{};
  for (std::size_t done = 0, counter = 1; done < out.size(); ++counter) {
    const std::array<std::byte, 1> number{static_cast<std::byte>(counter)};
    const ByteView chained = counter == 1 ? ByteView() : as_byte_view(previous);
    const std::array<ByteView, 3> parts{chained, info, number};
    previous = expand.of(parts);
    const std::size_t take = std::min(previous.size(), out.size() - done);
    std::copy_n(previous.begin(), take, out.begin() + static_cast<std::ptrdiff_t>(done));
    done += take;
  }
}

bool equal_constant_time(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  if (a.size() != b.size()) return false;
  volatile std::uint8_t difference = 0;  // volatile: the compiler may not leave the loop early
  for (std::size_t i = 0; i < a.size(); ++i) difference = static_cast<std::uint8_t>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

}  // namespace kvferry
