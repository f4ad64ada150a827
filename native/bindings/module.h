// What each file of this folder adds to the module kvferry._native.
#pragma once

#include <pybind11/pybind11.h>

#include "gil.h"

namespace kvferry::python {

void bind_log(py::module_& module, Blocking& blocking);
void bind_topology(py::module_& module, Blocking& blocking);
void bind_device(py::module_& module, Blocking& blocking);
void bind_endpoint(py::module_& module);
void bind_options(py::module_& module);
void bind_region(py::module_& module);
void bind_peer(py::module_& module, Blocking& blocking);
void bind_transfer(py::module_& module, Blocking& blocking);  // Plan and Transfer
void bind_engine(py::module_& module, Blocking& blocking);
void bind_index(py::module_& module, Blocking& blocking);  // KeySpace, KeyChain and ChainIndex
void bind_replay(py::module_& module, Blocking& blocking);
void bind_node(py::module_& module, Blocking& blocking);
void bind_store(py::module_& module, Blocking& blocking);  // Store and View

}  // namespace kvferry::python
