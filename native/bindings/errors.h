// Status to Python exception: the one place where it happens.
#pragma once

#include <pybind11/pybind11.h>

#include <string_view>
#include <utility>

#include "kvferry/status.h"

namespace kvferry::python {

namespace py = pybind11;

// Carries a Status out of a binding. May be thrown without the interpreter lock.
struct StatusError {
  Status status;
};

inline void check(const Status& status) {
  if (!status.ok()) throw StatusError{status};
}

template <typename T>
T unwrap(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

// Text that may come from a peer: bytes that are not UTF-8 are shown escaped instead of raising.
py::str text(std::string_view bytes);

// An instance of the class in kvferry.errors whose code is the status's; None if OK.
py::object to_exception(const Status& status);

void register_errors();  // makes StatusError raise that instance

}  // namespace kvferry::python
