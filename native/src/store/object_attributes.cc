#include "store/object_attributes.h"

#include <chrono>
#include <utility>

#include "base/bytes.h"
#include "store/object_records.h"

namespace kvferry::store {
namespace {

constexpr std::uint8_t kVersion = 1;

}  // namespace

std::uint64_t wall_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<milliseconds>(now).count());
}

std::string encode_attributes(const NewObject& object, std::uint64_t expires_wall_ms) {
  ByteWriter writer;
  writer.u8(kVersion);
  writer.u8(static_cast<std::uint8_t>(object.replicas));
  writer.u8(object.extra ? 1 : 0);
  writer.u32(object.depth);
  writer.u64(object.parent.hi);
  writer.u64(object.parent.lo);
  writer.u64(expires_wall_ms);
  writer.text8(object.tenant);
  writer.u8(static_cast<std::uint8_t>(object.tags.size()));
  for (const std::string& tag : object.tags) writer.text8(tag);
  return std::string(as_text(writer.take()));
}

std::optional<Attributes> decode_attributes(std::string_view bytes) {
  ByteReader reader(as_byte_view(bytes));
  Attributes attributes;
  NewObject& object = attributes.object;
  if (reader.u8() != kVersion) return std::nullopt;
  object.replicas = reader.u8();
  object.extra = reader.u8() == 1;
  object.depth = reader.u32();
  object.parent.hi = reader.u64();
  object.parent.lo = reader.u64();
  attributes.expires_wall_ms = reader.u64();
  object.tenant = reader.text8(kMaxTenantBytes);
  const std::uint8_t tags = reader.u8();
  for (std::uint8_t tag = 0; tag < tags && reader.ok(); ++tag) object.tags.push_back(reader.text8(kMaxTagBytes));
  if (tags > kMaxTags || !reader.finish("attributes").ok()) return std::nullopt;
  return attributes;
}

}  // namespace kvferry::store
