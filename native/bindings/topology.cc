#include "kvferry/topology.h"

#include <pybind11/stl.h>

#include <string>

#include "module.h"

namespace kvferry::python {
namespace {

void bind_parts(py::module_& module) {
  py::class_<NumaNode>(module, "NumaNode", "A NUMA node: CPUs and memory that are near each other.")
      .def_readonly("id", &NumaNode::id)
      .def_readonly("cpus", &NumaNode::cpus)
      .def_readonly("memory_bytes", &NumaNode::memory_bytes)
      .def_readonly("distances", &NumaNode::distances);
  py::class_<NicAddress>(module, "NicAddress", "An address of an interface, with its network's prefix length.")
      .def_readonly("host", &NicAddress::host)
      .def_readonly("prefix_length", &NicAddress::prefix_length);
  py::class_<Accelerator>(module, "Accelerator", "A GPU or NPU, as the PCI bus shows it.")
      .def_readonly("vendor", &Accelerator::vendor)
      .def_readonly("pci_address", &Accelerator::pci_address)
      .def_readonly("numa_node", &Accelerator::numa_node);
  py::class_<Nic>(module, "Nic", "A network interface.")
      .def_readonly("name", &Nic::name)
      .def_readonly("up", &Nic::up)
      .def_readonly("loopback", &Nic::loopback)
      .def_readonly("speed_mbit", &Nic::speed_mbit, "0: unknown.")
      .def_readonly("numa_node", &Nic::numa_node, "-1: none or unknown.")
      .def_readonly("pci_address", &Nic::pci_address)
      .def_readonly("addresses", &Nic::addresses)
      .def_readonly("rdma_devices", &Nic::rdma_devices)
      .def(
          "distance",
          [](const Nic& self, const Accelerator& accelerator) {
            return std::string(distance_name(pci_distance(self, accelerator)));
          },
          py::arg("accelerator"), "\"same switch\", \"same root\", \"same node\" or \"cross\".");
}

}  // namespace

void bind_topology(py::module_& module, Blocking& blocking) {
  bind_parts(module);
  py::class_<Topology>(module, "Topology", "What a machine is made of. Immutable.")
      .def_readonly("nodes", &Topology::nodes)
      .def_readonly("nics", &Topology::nics)
      .def_readonly("accelerators", &Topology::accelerators)
      .def_readonly("engines", &Topology::engines, "Node ids of the engines that run in this network namespace.")
      .def_readonly("notes", &Topology::notes, "What could not be read.");
  module.def("discover_topology", &discover_topology, py::arg("root") = "/", py::call_guard<GilRelease>());
  blocking.note("discover_topology");
}

}  // namespace kvferry::python
