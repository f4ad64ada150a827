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

void bind_block_list(py::module_& module) {
  const auto make = [](std::uint32_t region, std::uint64_t offset, std::uint64_t block_bytes,
                       std::uint64_t stride_bytes, std::uint64_t count) {
    return BlockList{region, offset, block_bytes, stride_bytes, count};
  };
  py::class_<BlockList>(module, "BlockList",
                        "Equal blocks at even distances in one region, named by index: block i begins at offset + i * "
                        "stride_bytes. Immutable.")
      .def(py::init(make), py::arg("region"), py::arg("offset"), py::arg("block_bytes"), py::arg("stride_bytes"),
           py::arg("count"))
      .def_readonly("region", &BlockList::region, "Region id.")
      .def_readonly("offset", &BlockList::offset, "Of block 0, in bytes.")
      .def_readonly("block_bytes", &BlockList::block_bytes)
      .def_readonly("stride_bytes", &BlockList::stride_bytes, "From one block's start to the next's.")
      .def_readonly("count", &BlockList::count, "How many blocks; at most 2**31.");
}

void bind_stages(py::module_& module) {
  py::class_<TransferStages>(module, "TransferStages",
                             "Where a settled transfer's time went, in seconds. All but wake_s add up to "
                             "Transfer.seconds.")
      .def_readonly("submit_s", &TransferStages::submit_s, "Checks and pins, until it was queued or taken by a rail.")
      .def_readonly("queue_s", &TransferStages::queue_s, "Until a rail took its first slice.")
      .def_readonly("move_s", &TransferStages::move_s, "Until its last slice was done: posting, wire, copying.")
      .def_readonly("settle_s", &TransferStages::settle_s, "Until it was settled: notify message, accounts.")
      .def_readonly("wake_s", &TransferStages::wake_s,
                    "Until the first wait that slept had returned; 0 if none had to sleep.");
}

std::vector<py::object> piece_errors(const Transfer& self) {
  std::vector<py::object> errors;
  for (const Status& status : self.piece_status()) errors.push_back(to_exception(status));
  return errors;
}

}  // namespace

void bind_transfer(py::module_& module, Blocking& blocking) {
  bind_plan(module);
  bind_block_list(module);
  bind_stages(module);
  py::class_<Transfer, std::shared_ptr<Transfer>> cls(module, "Transfer");
  cls.def_property_readonly("settled", &Transfer::settled)
      .def_property_readonly("transport", &Transfer::transport)
      .def_property_readonly("seconds", &Transfer::seconds)
      .def_property_readonly("stages", &Transfer::stages)
      .def("cancel", &Transfer::cancel)
      .def("error", [](const Transfer& self) { return to_exception(self.status()); })
      .def("piece_errors", &piece_errors)
      .def("event_fd", &Transfer::event_fd);
  blocking.def(
      cls, "wait", [](Transfer& self, double timeout_s) { return self.wait(to_milliseconds(timeout_s)); },
      py::arg("timeout_s"));
}

}  // namespace kvferry::python
