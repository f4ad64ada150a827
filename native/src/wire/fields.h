// Fields that several messages share. Getters make the reader failed on a value that the format does not allow.
#pragma once

#include "base/bytes.h"
#include "kvferry/status.h"

namespace kvferry::wire {

void put_code(ByteWriter& writer, Code code);
Code get_code(ByteReader& reader);

// A u32 count of items of at least `item_bytes` each: at most `max`, and no more than the rest of the body can hold, so
// that a lie about it allocates nothing. 0 if the reader has failed.
std::size_t get_count(ByteReader& reader, std::size_t max, std::size_t item_bytes);

std::uint32_t get_arena_index(ByteReader& reader);

}  // namespace kvferry::wire
