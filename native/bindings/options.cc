#include <pybind11/stl.h>

#include "errors.h"
#include "kvferry/engine.h"
#include "module.h"
#include "seconds.h"

namespace kvferry::python {
namespace {

template <milliseconds EngineOptions::*Member>
void def_seconds(py::class_<EngineOptions>& cls, const char* name) {
  cls.def_property(
      name, [](const EngineOptions& self) { return to_seconds(self.*Member); },
      [](EngineOptions& self, double seconds) { self.*Member = to_milliseconds(seconds); });
}

}  // namespace

void bind_options(py::module_& module) {
  py::class_<EngineOptions> cls(module, "EngineOptions", "See kvferry.config.TransferOptions, which documents these.");
  cls.def(py::init<>())
      .def_readwrite("bind", &EngineOptions::bind)
      .def_readwrite("advertise", &EngineOptions::advertise)
      .def_readwrite("transports", &EngineOptions::transports)
      .def_readwrite("rails", &EngineOptions::rails)
      .def_readwrite("device", &EngineOptions::device)
      .def_readwrite("numa_aware", &EngineOptions::numa_aware)
      .def_readwrite("preferred_numa_node", &EngineOptions::preferred_numa_node)
      .def_readwrite("allow_fallback", &EngineOptions::allow_fallback)
      .def_readwrite("cluster_secret", &EngineOptions::cluster_secret)
      .def_readwrite("tls", &EngineOptions::tls)
      .def_readwrite("tls_cert_file", &EngineOptions::tls_cert_file)
      .def_readwrite("tls_key_file", &EngineOptions::tls_key_file)
      .def_readwrite("tls_ca_file", &EngineOptions::tls_ca_file)
      .def_property(
          "metadata", [](const EngineOptions& self) { return py::bytes(self.metadata); },
          [](EngineOptions& self, const py::bytes& metadata) { self.metadata = std::string(metadata); })
      .def_readwrite("tcp_streams", &EngineOptions::tcp_streams)
      .def_readwrite("shm_lanes", &EngineOptions::shm_lanes)
      .def_readwrite("slice_bytes", &EngineOptions::slice_bytes)
      .def_readwrite("max_connections", &EngineOptions::max_connections)
      .def_readwrite("checksum", &EngineOptions::checksum)
      .def_readwrite("io_uring", &EngineOptions::io_uring)
      .def_readwrite("advise_huge_pages", &EngineOptions::advise_huge_pages)
      .def_readwrite("fault_plan", &EngineOptions::fault_plan);
  module.def(
      "tls_library", [] { return unwrap(tls_library()); }, "Version of the library used for TLS, or an error.");
  def_seconds<&EngineOptions::connect_timeout>(cls, "connect_timeout_s");
  def_seconds<&EngineOptions::transfer_timeout>(cls, "transfer_timeout_s");
  def_seconds<&EngineOptions::link_timeout>(cls, "link_timeout_s");
  def_seconds<&EngineOptions::idle_probe>(cls, "idle_probe_s");
}

}  // namespace kvferry::python
