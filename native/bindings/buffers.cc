#include "buffers.h"

#include <limits>
#include <string>

#include "errors.h"

namespace kvferry::python {
namespace {

constexpr py::ssize_t kColumns = 5;

void check_shape(const py::buffer_info& info) {
  const auto refuse = [](const std::string& what) {
    throw StatusError{
        {Code::kInvalidArgument, "pieces must be a C-contiguous uint64 array of shape [n, 5]; this one has " + what}};
  };
  if (!info.item_type_is_equivalent_to<std::uint64_t>()) refuse("element format '" + info.format + "'");
  if (info.ndim != 2) refuse(std::to_string(info.ndim) + " dimensions");
  if (info.shape[1] != kColumns) refuse(std::to_string(info.shape[1]) + " columns");
  const py::ssize_t item = static_cast<py::ssize_t>(sizeof(std::uint64_t));
  const bool dense = info.strides[1] == item && info.strides[0] == kColumns * item;
  if (info.shape[0] > 0 && !dense) refuse("gaps between its elements");
}

std::uint32_t region_id(std::uint64_t value, py::ssize_t row) {
  if (value > std::numeric_limits<std::uint32_t>::max()) {
    throw StatusError{
        {Code::kInvalidArgument, "piece " + std::to_string(row) + " names region " + std::to_string(value)}};
  }
  return static_cast<std::uint32_t>(value);
}

}  // namespace

std::uintptr_t buffer_address(const py::object& buffer) {
  Py_buffer view;
  if (PyObject_GetBuffer(buffer.ptr(), &view, PyBUF_ANY_CONTIGUOUS) != 0) throw py::error_already_set();
  const auto address = reinterpret_cast<std::uintptr_t>(view.buf);
  PyBuffer_Release(&view);
  return address;
}

std::vector<Piece> read_pieces(const py::buffer& array) {
  const py::buffer_info info = array.request();
  check_shape(info);
  std::vector<Piece> pieces(static_cast<std::size_t>(info.shape[0]));
  const auto* row = static_cast<const std::uint64_t*>(info.ptr);
  for (py::ssize_t i = 0; i < info.shape[0]; ++i, row += kColumns) {
    pieces[static_cast<std::size_t>(i)] = {region_id(row[0], i), region_id(row[1], i), row[2], row[3], row[4]};
  }
  return pieces;
}

std::vector<std::int32_t> read_indices(const py::buffer& array, const char* name) {
  const py::buffer_info info = array.request();
  const auto refuse = [&](const std::string& what) {
    throw StatusError{{Code::kInvalidArgument,
                       std::string(name) + " must be a dense int32 array of shape [n]; this one has " + what}};
  };
  if (!info.item_type_is_equivalent_to<std::int32_t>()) refuse("element format '" + info.format + "'");
  if (info.ndim != 1) refuse(std::to_string(info.ndim) + " dimensions");
  if (info.shape[0] > 1 && info.strides[0] != static_cast<py::ssize_t>(sizeof(std::int32_t))) {
    refuse("gaps between its elements");
  }
  const auto* first = static_cast<const std::int32_t*>(info.ptr);
  return {first, first + info.shape[0]};
}

}  // namespace kvferry::python
