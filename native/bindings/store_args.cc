#include "store_args.h"

#include <cstring>
#include <string>

#include "errors.h"

namespace kvferry::python {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw StatusError{{Code::kInvalidArgument, what}}; }

template <typename T>
std::vector<T> read_dense(const py::buffer& array, const char* name) {
  const py::buffer_info info = array.request();
  if (!info.item_type_is_equivalent_to<T>() || info.ndim != 1) {
    refuse(std::string(name) + " must be a dense array of shape [n] of 64-bit integers; its elements are '" +
           info.format + "' in " + std::to_string(info.ndim) + " dimensions");
  }
  if (info.shape[0] > 1 && info.strides[0] != static_cast<py::ssize_t>(sizeof(T))) {
    refuse(std::string(name) + " must have no gaps between its elements");
  }
  const auto* first = static_cast<const T*>(info.ptr);
  return {first, first + info.shape[0]};
}

}  // namespace

Keys::Keys(const py::object& keys) {
  const bool sequence = PyList_Check(keys.ptr()) != 0 || PyTuple_Check(keys.ptr()) != 0;
  if (sequence) {
    read_sequence(keys);
  } else if (PyObject_CheckBuffer(keys.ptr()) != 0 && PyBytes_Check(keys.ptr()) == 0) {
    read_array(py::reinterpret_borrow<py::buffer>(keys));
  } else {
    refuse("keys must be a list of bytes or a uint8 array of shape [n, length]");
  }
}

void Keys::read_sequence(const py::object& keys) {
  const py::tuple items(keys);
  views_.reserve(items.size());
  for (const py::handle item : items) {
    if (PyBytes_Check(item.ptr()) == 0) refuse("a key must be bytes, not " + std::string(Py_TYPE(item.ptr())->tp_name));
    views_.emplace_back(PyBytes_AS_STRING(item.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(item.ptr())));
  }
  owner_ = items;
}

void Keys::read_array(const py::buffer& array) {
  auto info = array.request();
  const bool dense = info.ndim == 2 && info.itemsize == 1 && (info.shape[0] < 2 || info.strides[0] == info.shape[1]) &&
                     (info.shape[1] < 2 || info.strides[1] == 1);
  if (!dense) refuse("an array of keys must be dense uint8 of shape [n, length]");
  const auto length = static_cast<std::size_t>(info.shape[1]);
  // A copy: the array's owner may write to it while the lock is given up.
  const py::bytes copy(static_cast<const char*>(info.ptr), static_cast<std::size_t>(info.size));
  const char* first = PyBytes_AS_STRING(copy.ptr());
  for (py::ssize_t i = 0; i < info.shape[0]; ++i) {
    views_.emplace_back(first + static_cast<std::size_t>(i) * length, length);
  }
  owner_ = copy;
}

template <typename Byte>
Runs<Byte>::Runs(const py::buffer& addresses, const py::buffer& lengths, const py::buffer& counts) {
  lay_out(read_dense<std::uint64_t>(addresses, "addresses"), read_dense<std::uint64_t>(lengths, "lengths"),
          read_dense<std::int64_t>(counts, "counts"));
}

template <typename Byte>
Runs<Byte>::Runs(const BufferRuns& found) {
  lay_out(found.addresses_, found.lengths_, found.counts_);
}

template <typename Byte>
void Runs<Byte>::lay_out(std::span<const std::uint64_t> starts, std::span<const std::uint64_t> sizes,
                         std::span<const std::int64_t> counts) {
  if (starts.size() != sizes.size()) refuse("there must be as many lengths as addresses");
  runs_.reserve(starts.size());
  for (std::size_t i = 0; i < starts.size(); ++i) {
    runs_.emplace_back(reinterpret_cast<Byte*>(starts[i]), sizes[i]);  // NOLINT: an address is what buffers tell
  }
  std::size_t next = 0;
  values_.reserve(counts.size());
  for (const std::int64_t count : counts) {
    if (count < 0 || static_cast<std::size_t>(count) > runs_.size() - next) refuse("counts do not fit the addresses");
    values_.emplace_back(runs_.data() + next, static_cast<std::size_t>(count));
    next += static_cast<std::size_t>(count);
  }
  if (next != runs_.size()) refuse("counts do not fit the addresses");
}

std::unique_ptr<BufferRuns> BufferRuns::find(const py::sequence& values, bool writable) {
  std::unique_ptr<BufferRuns> runs(new BufferRuns());
  for (const py::handle value : values) {
    if (PyList_Check(value.ptr()) != 0 || PyTuple_Check(value.ptr()) != 0) {
      const py::tuple parts(py::reinterpret_borrow<py::object>(value));
      for (const py::handle part : parts) {
        if (!runs->add(part.ptr(), writable)) return nullptr;
      }
      runs->counts_.push_back(static_cast<std::int64_t>(parts.size()));
    } else {
      if (!runs->add(value.ptr(), writable)) return nullptr;
      runs->counts_.push_back(1);
    }
  }
  return runs;
}

BufferRuns::~BufferRuns() {
  for (Py_buffer& buffer : buffers_) PyBuffer_Release(&buffer);
}

bool BufferRuns::add(PyObject* buffer, bool writable) {
  Py_buffer view;
  // The format tells of arrays that hold references to objects.
  if (PyObject_CheckBuffer(buffer) == 0) return false;
  if (PyObject_GetBuffer(buffer, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return false;
  }
  buffers_.push_back(view);
  const bool plain = PyBytes_Check(buffer) != 0 || PyByteArray_Check(buffer) != 0 || PyMemoryView_Check(buffer) != 0;
  const bool objects = view.format != nullptr && std::strchr(view.format, 'O') != nullptr;
  if (objects || (writable && view.readonly != 0) || (view.len == 0 && !plain)) return false;
  addresses_.push_back(reinterpret_cast<std::uintptr_t>(view.buf));
  lengths_.push_back(static_cast<std::uint64_t>(view.len));
  return true;
}

template class Runs<std::byte>;
template class Runs<const std::byte>;

}  // namespace kvferry::python
