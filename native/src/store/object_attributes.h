// What a record of the SSD log keeps of an object besides its key and bytes. Times are of the wall clock there, since
// no other one goes on when the host starts again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "store/local_store.h"

namespace kvferry::store {

inline constexpr std::uint64_t kNoWallExpiry = 0;

std::uint64_t wall_ms();  // since 1970

// `expires_wall_ms` in place of object.expires_in.
std::string encode_attributes(const NewObject& object, std::uint64_t expires_wall_ms);

struct Attributes {
  NewObject object;  // tenant, replicas, tags, parent, depth and extra are set
  std::uint64_t expires_wall_ms = kNoWallExpiry;
};
// Nothing if the bytes are not what encode_attributes() makes.
std::optional<Attributes> decode_attributes(std::string_view bytes);

}  // namespace kvferry::store
