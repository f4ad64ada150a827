#include <pybind11/stl.h>

#include "errors.h"
#include "kvferry/engine.h"
#include "module.h"
#include "seconds.h"

namespace kvferry::python {
namespace {

std::map<std::string, std::uint64_t> failed_by_name(const TransportStats& self) {
  std::map<std::string, std::uint64_t> out;
  for (const auto& [code, count] : self.failed_pieces) out.emplace(code_name(code), count);
  return out;
}

void bind_transport_stats(py::module_& module) {
  py::class_<TransportStats>(module, "TransportStats",
                             "What moved to and from one peer by one transport so far. A snapshot. A transfer that "
                             "several took part in counts for the one that ended it.")
      .def_readonly("transport", &TransportStats::transport)
      .def_readonly("bytes_read", &TransportStats::bytes_read)
      .def_readonly("bytes_written", &TransportStats::bytes_written)
      .def_readonly("transfers", &TransportStats::transfers)
      .def_readonly("pieces", &TransportStats::pieces, "Good and bad.")
      .def_property_readonly("failed_pieces", &failed_by_name, "By kind: the code of the error, e.g. peer_lost.")
      .def_readonly("rail_failures", &TransportStats::rail_failures, "How often a rail broke in use.")
      .def_readonly("retried_slices", &TransportStats::retried_slices)
      .def_readonly("rails", &TransportStats::rails, "Open now.")
      .def_readonly("latency", &TransportStats::latency,
                    "Transfers that did not fail, by time from submission to settlement: entry 0 counts those under "
                    "1 us, entry i those of at least 2**(i-1) and less than 2**i us, the last all longer ones.")
      .def_readonly("latency_sum_s", &TransportStats::latency_sum_s);
}

void bind_peer_stats(py::module_& module) {
  py::class_<RailStats>(module, "RailStats", "One way to a peer: a transport, for tcp with a pair of addresses.")
      .def_readonly("name", &RailStats::name)
      .def_readonly("transport", &RailStats::transport)
      .def_readonly("lanes", &RailStats::lanes, "Connections or attachments open now.")
      .def_readonly("set_aside", &RailStats::set_aside, "It failed and has not worked since.")
      .def_readonly("bytes", &RailStats::bytes)
      .def_readonly("failures", &RailStats::failures)
      .def_readonly("recoveries", &RailStats::recoveries)
      .def_property_readonly(
          "reason", [](const RailStats& self) { return text(self.reason); }, "Why it failed last; empty if it works.");
  py::class_<PeerStats>(module, "PeerStats", "What moved to and from one peer so far. A snapshot.")
      .def_readonly("transport", &PeerStats::transport)
      .def_readonly("bytes_read", &PeerStats::bytes_read)
      .def_readonly("bytes_written", &PeerStats::bytes_written)
      .def_readonly("pieces", &PeerStats::pieces)
      .def_readonly("failed_pieces", &PeerStats::failed_pieces)
      .def_readonly("retried_slices", &PeerStats::retried_slices)
      .def_readonly("rail_switches", &PeerStats::rail_switches,
                    "How often traffic moved to another transport or rail, or back.")
      .def_readonly("unsettled_transfers", &PeerStats::unsettled_transfers, "Now.")
      .def_readonly("queued_slices", &PeerStats::queued_slices, "Parts of these that wait for a rail now.")
      .def_readonly("by_transport", &PeerStats::by_transport, "Those used so far.")
      .def_readonly("rails", &PeerStats::rails, "Each way to the peer, best first.");
}

}  // namespace

void bind_peer(py::module_& module, Blocking& blocking) {
  bind_transport_stats(module);
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
