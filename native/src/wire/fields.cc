#include "wire/fields.h"

#include <string>

#include "base/limits.h"

namespace kvferry::wire {

void put_code(ByteWriter& writer, Code code) { writer.u8(static_cast<std::uint8_t>(code)); }

Code get_code(ByteReader& reader) {
  const std::uint8_t value = reader.u8();
  if (value <= static_cast<std::uint8_t>(Code::kConflict)) return static_cast<Code>(value);
  reader.fail("unknown status code " + std::to_string(value));
  return Code::kInternal;
}

std::size_t get_count(ByteReader& reader, std::size_t max, std::size_t item_bytes) {
  const std::uint32_t count = reader.u32();
  if (count > max) reader.fail(std::to_string(count) + " items; at most " + std::to_string(max) + " are allowed");
  if (count > reader.remaining() / item_bytes) reader.fail(std::to_string(count) + " items do not fit the body");
  return reader.ok() ? count : 0;
}

std::uint32_t get_arena_index(ByteReader& reader) {
  const std::uint32_t index = reader.u32();
  if (reader.ok() && (index == 0 || index > kMaxArenas)) reader.fail("bad arena index " + std::to_string(index));
  return index;
}

}  // namespace kvferry::wire
