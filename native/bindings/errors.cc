#include "errors.h"

#include <exception>

namespace kvferry::python {

py::str text(std::string_view bytes) {
  PyObject* decoded = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

py::object to_exception(const Status& status) {
  if (status.ok()) return py::none();
  const py::object cls = py::module_::import("kvferry.errors").attr("error_for_code")(text(code_name(status.code())));
  return cls(text(status.message()));
}

void register_errors() {
  py::register_local_exception_translator([](std::exception_ptr pending) {
    try {
      if (pending) std::rethrow_exception(pending);
    } catch (const StatusError& error) {
      const py::object exception = to_exception(error.status);
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
    }
  });
}

}  // namespace kvferry::python
