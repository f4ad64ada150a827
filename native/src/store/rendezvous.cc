#include "store/rendezvous.h"

#include <algorithm>
#include <array>
#include <numeric>

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

std::vector<std::size_t> rendezvous_order(const ObjectId& object, std::span<const NodeId> nodes) {
  Input input = begin(object);
  std::vector<std::uint64_t> scores;
  for (const NodeId& node : nodes) scores.push_back(score(input, node));
  std::vector<std::size_t> order(nodes.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : nodes[a] > nodes[b];
  });
  return order;
}

std::uint64_t members_fingerprint(std::span<const NodeId> nodes) {
  std::vector<NodeId> sorted(nodes.begin(), nodes.end());
  std::ranges::sort(sorted);
  Xxh3 hash;
  for (const NodeId& node : sorted) hash.update(as_byte_view(node.bytes));
  return std::max<std::uint64_t>(hash.digest_64(), 1);
}

}  // namespace kvferry::store
