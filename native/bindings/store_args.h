// What Python hands to the store: many keys and many runs of memory, read once with the interpreter lock held and used
// without it.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kvferry::python {

namespace py = pybind11;

// Keys given as a sequence of bytes, or as one dense uint8 array of shape [n, length]. Keeps what it views alive, so
// that nobody can take it away while the interpreter lock is given up.
class Keys {
 public:
  explicit Keys(const py::object& keys);  // StatusError (kInvalidArgument) if it is neither
  std::span<const std::string_view> views() const { return views_; }

 private:
  void read_sequence(const py::object& keys);
  void read_array(const py::buffer& array);
  py::object owner_;
  std::vector<std::string_view> views_;
};

// The memory of each value: `counts[i]` runs of value i follow one another in `addresses` and `lengths`. All dense
// arrays, uint64, uint64 and int64. The caller keeps the memory itself alive.
template <typename Byte>
class Runs {
 public:
  using Values = std::span<const std::span<const std::span<Byte>>>;
  Runs(const py::buffer& addresses, const py::buffer& lengths, const py::buffer& counts);
  Values values() const { return values_; }

 private:
  std::vector<std::span<Byte>> runs_;
  std::vector<std::span<const std::span<Byte>>> values_;
};

extern template class Runs<std::byte>;
extern template class Runs<const std::byte>;

}  // namespace kvferry::python
