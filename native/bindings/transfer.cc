#include <pybind11/stl.h>

#include "errors.h"
#include "kvferry/engine.h"
#include "module.h"
#include "seconds.h"

namespace kvferry::python {
namespace {

void bind_plan(py::module_& module) {
  py::class_<Plan, std::shared_ptr<Plan>>(module, "Plan",
                                          "Checked, sorted and merged pieces. Immutable; submit it as often as "
                                          "needed, from any thread.")
      .def_property_readonly("op", [](const Plan& self) { return self.op() == Op::kRead ? "read" : "write"; })
      .def_property_readonly("bytes", &Plan::bytes)
      .def_property_readonly("pieces", &Plan::pieces, "Number of pieces as given.")
      .def_property_readonly("runs", &Plan::runs, "Number of contiguous runs after merging.");
}

std::vector<py::object> piece_errors(const Transfer& self) {
  std::vector<py::object> errors;
  for (const Status& status : self.piece_status()) errors.push_back(to_exception(status));
  return errors;
}

}  // namespace

void bind_transfer(py::module_& module, Blocking& blocking) {
  bind_plan(module);
  py::class_<Transfer, std::shared_ptr<Transfer>> cls(module, "Transfer");
  cls.def_property_readonly("settled", &Transfer::settled)
      .def_property_readonly("transport", &Transfer::transport)
      .def_property_readonly("seconds", &Transfer::seconds)
      .def("cancel", &Transfer::cancel)
      .def("error", [](const Transfer& self) { return to_exception(self.status()); })
      .def("piece_errors", &piece_errors)
      .def("event_fd", &Transfer::event_fd);
  blocking.def(
      cls, "wait", [](Transfer& self, double timeout_s) { return self.wait(to_milliseconds(timeout_s)); },
      py::arg("timeout_s"));
}

}  // namespace kvferry::python
