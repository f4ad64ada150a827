// What Python hands to the store: many keys and many runs of memory, read once with the interpreter lock held and used
// without it.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
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

// The memory of values that are plain buffers (bytes, bytearrays, memoryviews, numpy arrays), or lists and tuples of
// such: the usual ones, found without a step of Python for each. Holds the buffers as long as it lives.
class BufferRuns {
 public:
  // Null if a value is anything else, is empty though it could be a mistake, or is read-only though `writable`: then
  // the caller has to look closer.
  static std::unique_ptr<BufferRuns> find(const py::sequence& values, bool writable);
  ~BufferRuns();
  BufferRuns(const BufferRuns&) = delete;
  BufferRuns& operator=(const BufferRuns&) = delete;
  py::bytes addresses() const { return as_bytes(addresses_); }
  py::bytes lengths() const { return as_bytes(lengths_); }
  py::bytes counts() const { return as_bytes(counts_); }

 private:
  template <typename Byte>
  friend class Runs;
  BufferRuns() = default;
  bool add(PyObject* buffer, bool writable);
  template <typename T>
  static py::bytes as_bytes(const std::vector<T>& values) {
    return {static_cast<const char*>(static_cast<const void*>(values.data())), values.size() * sizeof(T)};
  }
  std::vector<Py_buffer> buffers_;
  std::vector<std::uint64_t> addresses_, lengths_;
  std::vector<std::int64_t> counts_;
};

// The memory of each value: `counts[i]` runs of value i follow one another in `addresses` and `lengths`. All dense
// arrays, uint64, uint64 and int64. The caller keeps the memory itself alive.
template <typename Byte>
class Runs {
 public:
  using Values = std::span<const std::span<const std::span<Byte>>>;
  Runs(const py::buffer& addresses, const py::buffer& lengths, const py::buffer& counts);
  explicit Runs(const BufferRuns& found);
  Values values() const { return values_; }

 private:
  void lay_out(std::span<const std::uint64_t> starts, std::span<const std::uint64_t> sizes,
               std::span<const std::int64_t> counts);
  std::vector<std::span<Byte>> runs_;
  std::vector<std::span<const std::span<Byte>>> values_;
};

extern template class Runs<std::byte>;
extern template class Runs<const std::byte>;

}  // namespace kvferry::python
