#include "module.h"

#include "errors.h"

namespace {

pybind11::list public_names(const pybind11::module_& module) {
  pybind11::list names;
  for (const auto& item : pybind11::dict(module.attr("__dict__"))) {
    if (!pybind11::str(item.first).attr("startswith")("_").cast<bool>()) names.append(item.first);
  }
  names.attr("sort")();
  return names;
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  using namespace kvferry::python;
  module.doc() =
      "The native transfer engine. Use kvferry.transfer, which documents and checks; this module is private.";
  module.attr("__version__") = KVFERRY_VERSION;
  Blocking blocking;
  register_errors();
  bind_log(module, blocking);
  bind_topology(module, blocking);
  bind_device(module, blocking);
  bind_endpoint(module);
  bind_options(module);
  bind_region(module);
  bind_peer(module, blocking);
  bind_transfer(module, blocking);
  bind_engine(module, blocking);
  bind_index(module, blocking);
  bind_replay(module, blocking);
  bind_node(module, blocking);
  bind_store(module, blocking);
  module.attr("BLOCKING") = blocking.names();
  module.attr("__all__") = public_names(module);
}
