// Ids of objects that were given up, each with a small number, oldest forgotten first. 2 bytes an id.
//
// An id is known by 32 bits of it, its tag: the upper ones choose a bucket of kWays ids, twelve of the lower ones are
// kept. A tag that was never put in is taken for a known one about once in 256 times, which costs a wrong guess and no
// more.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvferry/object_id.h"

namespace kvferry::store {

inline std::uint32_t tag_of(const ObjectId& id) { return static_cast<std::uint32_t>(id.hi ^ (id.hi >> 32)); }

class History {
 public:
  // Remembers about so many times as many ids as there are objects.
  explicit History(std::uint32_t ids_per_object) : ids_per_object_(ids_per_object) {}

  void make_room_for(std::uint64_t objects);
  void put(std::uint32_t tag, std::uint8_t number);     // number < 16
  std::optional<std::uint8_t> take(std::uint32_t tag);  // and forgets it
  std::uint64_t memory_bytes() const { return ids_.capacity() * sizeof(std::uint16_t); }

 private:
  static constexpr std::uint32_t kWays = 16;
  static constexpr std::uint32_t kFewest = 16;  // buckets

  std::uint16_t* bucket(std::uint32_t tag);

  std::uint32_t ids_per_object_;
  std::uint32_t buckets_ = 0;       // a power of two
  std::vector<std::uint16_t> ids_;  // kWays for each bucket, newest first; 0: none
};

}  // namespace kvferry::store
