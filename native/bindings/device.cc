#include "device/driver.h"

#include <pybind11/stl.h>

#include "errors.h"
#include "module.h"

namespace kvferry::python {
namespace {

std::vector<DriverReport> device_drivers() {
  const auto all = probe_device_drivers();
  return {all.begin(), all.end()};
}

}  // namespace

void bind_device(py::module_& module, Blocking& blocking) {
  py::class_<DriverReport>(module, "DeviceDriver", "What is known of one vendor's accelerator driver.")
      .def_property_readonly("kind", [](const DriverReport& self) { return text(memory_kind_name(self.kind)); })
      .def_property_readonly("usable", [](const DriverReport& self) { return self.status.ok(); })
      .def_property_readonly(
          "text", [](const DriverReport& self) { return text(self.text); }, "Version and devices, or what is missing.");
  module.def("device_drivers", &device_drivers, py::call_guard<GilRelease>());
  blocking.note("device_drivers");
}

}  // namespace kvferry::python
