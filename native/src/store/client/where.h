// Asks the owners of ids where their objects are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "store/client/core.h"

namespace kvferry::store {

struct Found {
  bool found = false;
  std::uint64_t bytes = 0;
  ContentDigest digest;
  std::vector<NodeId> holders;  // best first
};

// One element per id, in order. `value`, if given, is called with the bytes of small objects that came along, up to
// `inline_bytes` each: true takes the object as delivered, and its holders are left out. Asks on after nodes that fail,
// and, while the members are not all well, asks everybody for what an owner does not know. Fails only if nobody
// answers.
Result<std::vector<Found>> where(
    ClientCore& core, std::span<const ObjectId> ids, Deadline deadline, std::uint32_t inline_bytes = 0,
    const std::function<bool(std::size_t, ByteView, const ContentDigest&)>& value = nullptr);

// Byte i becomes 1 if ids[i] is somewhere; bytes that are 1 already are left out.
Status exists_anywhere(ClientCore& core, std::span<const ObjectId> ids, std::span<std::uint8_t> found,
                       Deadline deadline);

// One result per id; an error says who did not answer, or which nodes may still hold it.
std::vector<Status> remove_everywhere(ClientCore& core, std::span<const ObjectId> ids, Deadline deadline);

}  // namespace kvferry::store
