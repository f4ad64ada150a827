#include <pybind11/stl.h>

#include "errors.h"
#include "kvferry/engine.h"
#include "module.h"
#include "seconds.h"

namespace kvferry::python {
namespace {

void bind_peer_stats(py::module_& module) {
  py::class_<PeerStats>(module, "PeerStats", "What moved to and from one peer so far. A snapshot.")
      .def_readonly("transport", &PeerStats::transport)
      .def_readonly("bytes_read", &PeerStats::bytes_read)
      .def_readonly("bytes_written", &PeerStats::bytes_written)
      .def_readonly("pieces", &PeerStats::pieces)
      .def_readonly("failed_pieces", &PeerStats::failed_pieces)
      .def_readonly("retried_slices", &PeerStats::retried_slices);
}

}  // namespace

void bind_peer(py::module_& module, Blocking& blocking) {
  bind_peer_stats(module);
  py::class_<Peer, std::shared_ptr<Peer>> cls(module, "Peer");
  cls.def_property_readonly("handle", &Peer::handle)
      .def_property_readonly("node_id", [](const Peer& self) { return self.node_id().to_string(); })
      .def_property_readonly("endpoint", &Peer::endpoint)
      .def_property_readonly("metadata", [](const Peer& self) { return py::bytes(self.metadata()); })
      .def_property_readonly("regions", &Peer::regions)
      .def_property_readonly("same_host", &Peer::same_host)
      .def_property_readonly("transport_note", [](const Peer& self) { return text(self.transport_note()); })
      .def("error", [](const Peer& self) { return to_exception(self.status()); })
      .def("stats", &Peer::stats);
  blocking.def(
      cls, "refresh", [](Peer& self, double timeout_s) { check(self.refresh(to_milliseconds(timeout_s))); },
      py::arg("timeout_s"));
  blocking.def(cls, "close", [](Peer& self) { self.close(); });
}

}  // namespace kvferry::python
