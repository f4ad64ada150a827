#include "kvferry/endpoint.h"

#include <pybind11/stl.h>

#include "errors.h"
#include "module.h"

namespace kvferry::python {

void bind_endpoint(py::module_& module) {
  py::class_<Endpoint>(module, "Endpoint",
                       "An address: IPv4, IPv6 with zone, unix path or abstract name. Immutable; parse and str are "
                       "inverse. InvalidArgumentError for text that is no address.")
      .def(py::init([](const std::string& address) { return unwrap(Endpoint::parse(address)); }), py::arg("address"))
      .def_property_readonly("host", &Endpoint::host)
      .def_property_readonly("port", &Endpoint::port)
      .def_property_readonly("is_loopback", &Endpoint::is_loopback)
      .def_property_readonly("is_wildcard", &Endpoint::is_wildcard)
      .def("with_port", &Endpoint::with_port, py::arg("port"), "The same host with another port.")
      .def("__eq__",
           [](const Endpoint& self, const py::object& other) {
             return py::isinstance<Endpoint>(other) && self == other.cast<const Endpoint&>();
           })
      .def("__hash__", [](const Endpoint& self) { return py::hash(text(self.to_string())); })
      .def("__str__", [](const Endpoint& self) { return text(self.to_string()); })
      .def("__repr__", [](const Endpoint& self) { return text("Endpoint('" + self.to_string() + "')"); });
}

}  // namespace kvferry::python
