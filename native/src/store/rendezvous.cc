#include "store/rendezvous.h"

#include <algorithm>
#include <array>

#include "base/xxh3.h"

namespace kvferry::store {
namespace {

using Input = std::array<std::uint8_t, 32>;  // object id, node id

void put_big_endian(std::uint64_t value, std::uint8_t* out) {
  for (int i = 7; i >= 0; --i, value >>= 8) out[i] = static_cast<std::uint8_t>(value);
}

Input begin(const ObjectId& object) {
  Input input{};
  put_big_endian(object.hi, input.data());
  put_big_endian(object.lo, input.data() + 8);
  return input;
}

std::uint64_t score(Input& input, const NodeId& node) {
  std::ranges::copy(node.bytes, input.begin() + 16);
  return xxh3_64(as_byte_view(input));
}

}  // namespace

std::uint64_t rendezvous_score(const ObjectId& object, const NodeId& node) {
  Input input = begin(object);
  return score(input, node);
}

std::optional<std::size_t> rendezvous_owner(const ObjectId& object, std::span<const NodeId> nodes) {
  if (nodes.empty()) return std::nullopt;
  Input input = begin(object);
  std::size_t best = 0;
  std::uint64_t highest = score(input, nodes[0]);
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    const std::uint64_t candidate = score(input, nodes[i]);
    if (candidate > highest || (candidate == highest && nodes[i] > nodes[best])) {
      best = i;
      highest = candidate;
    }
  }
  return best;
}

}  // namespace kvferry::store
