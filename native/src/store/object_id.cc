#include "kvferry/object_id.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <span>

#include "base/sha256.h"

namespace kvferry::store {
namespace {

ByteView bytes_of(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

std::uint64_t big_endian(const std::uint8_t* bytes) {
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value = value << 8 | bytes[i];
  return value;
}

}  // namespace

std::string ObjectId::to_string() const {
  std::array<char, 33> text{};
  std::snprintf(text.data(), text.size(), "%016llx%016llx", static_cast<unsigned long long>(hi),
                static_cast<unsigned long long>(lo));
  return text.data();
}

ObjectIds::ObjectIds(std::string_view tenant) : prefix_{} {
  const Digest digest = sha256(bytes_of(tenant));
  std::memcpy(prefix_.data(), "KVFobj1", 8);
  std::copy_n(digest.begin(), 16, prefix_.begin() + 8);
}

ObjectId ObjectIds::of(std::string_view key) const {
  // The key comes last and its end is the end of the input, so no length is needed to keep two keys apart.
  const Digest digest = sha256(std::as_bytes(std::span(prefix_)), bytes_of(key));
  return {big_endian(digest.data()), big_endian(digest.data() + 8)};
}

}  // namespace kvferry::store
