// A Python buffer in use: it stays where it is, and as large, while this object lives.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "errors.h"

namespace kvferry::python {

// Made and destroyed with the interpreter lock held; the spans may be used without it. Other threads of Python may
// change the bytes meanwhile, if they want wrong results. Throws StatusError (kInvalidArgument) for what is not a
// C-contiguous buffer of the kind asked for; `name` says which argument it is.
class HeldBuffer {
 public:
  HeldBuffer(const py::object& object, const char* name, bool writable = false) : name_(name) {
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) == 0) return;
    PyErr_Clear();
    refuse(writable ? "must be a writable C-contiguous buffer" : "must be a C-contiguous buffer");
  }
  ~HeldBuffer() { PyBuffer_Release(&view_); }
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;

  std::span<const std::int32_t> of_int32() const {
    const std::string format = view_.format == nullptr ? "B" : view_.format;
    if (view_.itemsize != 4 || (format != "i" && format != "<i" && format != "=i" && format != "l" && format != "<l")) {
      refuse("must hold int32; this one has format '" + format + "'");
    }
    return rows<std::int32_t>();
  }
  // The bytes as whole items of type T.
  template <typename T>
  std::span<const T> rows() const {
    return {static_cast<const T*>(view_.buf), count(sizeof(T))};
  }
  template <typename T>
  std::span<T> writable_rows() const {
    return {static_cast<T*>(view_.buf), count(sizeof(T))};
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw StatusError{{Code::kInvalidArgument, std::string(name_) + " " + why}};
  }
  std::size_t count(std::size_t item_bytes) const {
    const auto bytes = static_cast<std::size_t>(view_.len);
    if (bytes % item_bytes != 0 || reinterpret_cast<std::uintptr_t>(view_.buf) % alignment(item_bytes) != 0) {
      refuse("has " + std::to_string(bytes) + " bytes; a multiple of " + std::to_string(item_bytes) + " is needed");
    }
    return bytes / item_bytes;
  }
  static std::size_t alignment(std::size_t item_bytes) { return item_bytes == 4 ? 4 : 1; }

  const char* name_;
  Py_buffer view_{};
};

}  // namespace kvferry::python
