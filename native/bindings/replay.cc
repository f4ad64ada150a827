#include "store/policy/replay.h"

#include <pybind11/numpy.h>
#include <pybind11/typing.h>

#include <memory>
#include <string>
#include <vector>

#include "errors.h"
#include "module.h"

namespace kvferry::python {
namespace {

using Numbers = py::array_t<std::uint64_t, py::array::c_style>;
using Replayed = py::typing::Tuple<Numbers, std::uint64_t, std::uint64_t>;

std::span<const std::uint64_t> one_row(const Numbers& array, const char* name) {
  if (array.ndim() != 1) throw py::value_error(std::string(name) + " must have one dimension");
  return {array.data(), static_cast<std::size_t>(array.size())};
}

Numbers owned(std::vector<std::uint64_t> values) {
  auto kept = std::make_unique<std::vector<std::uint64_t>>(std::move(values));
  const std::vector<std::uint64_t>& numbers = *kept;
  const py::capsule owner(kept.release(),
                          [](void* memory) { delete static_cast<std::vector<std::uint64_t>*>(memory); });
  return Numbers(static_cast<py::ssize_t>(numbers.size()), numbers.data(), owner);
}

Replayed replay_trace(const Numbers& ids, const Numbers& offsets, const Numbers& block_bytes,
                      std::uint64_t capacity_bytes, const std::string& policy, bool chained) {
  const auto kind = store::policy_kind(policy);
  if (!kind) throw py::value_error("no eviction policy is named '" + policy + "'; there are lru, lfu, s3fifo, prefix");
  const auto given = one_row(offsets, "offsets");
  const std::vector<std::uint64_t> bounds(given.begin(), given.end());  // nobody can change them once they are checked
  const store::ReplayInput input{one_row(ids, "ids"), bounds, one_row(block_bytes, "block_bytes"), chained};
  store::ReplayResult result;
  {
    GilRelease unlocked;
    result = unwrap(store::replay(*kind, capacity_bytes, input));
  }
  return py::make_tuple(owned(std::move(result.hits)), result.policy_bytes, result.most_objects);
}

}  // namespace

void bind_replay(py::module_& module, Blocking& blocking) {
  module.def(
      "replay_trace", &replay_trace, py::arg("ids"), py::arg("offsets"), py::arg("block_bytes"),
      py::arg("capacity_bytes"), py::arg("policy"), py::arg("chained") = true,
      "Hits of each request, bytes that the policy took and objects that it knew, at most, after requests for chains "
      "of blocks on an empty cache; not `chained`: the policy is not told that they are chains. See "
      "native/src/store/policy/replay.h.");
  blocking.note("replay_trace");
}

}  // namespace kvferry::python
