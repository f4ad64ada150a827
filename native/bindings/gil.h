// The one way a binding gives up the interpreter lock, and the list of those that do.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <utility>

namespace kvferry::python {

namespace py = pybind11;

// While it lives, other Python threads run. No Python object may be touched meanwhile.
class GilRelease {
 public:
  GilRelease() = default;
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  py::gil_scoped_release release_;
};

// Defines bindings that may block, or take long, and remembers their names for `_native.BLOCKING`: a test demands
// that every binding is either in there or known never to block.
class Blocking {
 public:
  template <typename Class, typename Function, typename... Extra>
  void def(Class& cls, const char* name, Function&& function, const Extra&... extra) {
    cls.def(name, std::forward<Function>(function), py::call_guard<GilRelease>(), extra...);
    note(py::str(cls.attr("__name__")).cast<std::string>() + "." + name);
  }
  // For a function that must look at Python objects first and then makes a GilRelease itself.
  void note(const std::string& qualified_name) { names_.append(qualified_name); }
  py::tuple names() const { return py::tuple(names_); }

 private:
  py::list names_;
};

}  // namespace kvferry::python
