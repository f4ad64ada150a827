#include "region.h"

#include "errors.h"
#include "module.h"

namespace kvferry::python {

std::uint8_t parse_access(const std::string& access) {
  if (access == "r") return kRemoteRead;
  if (access == "w") return kRemoteWrite;
  if (access == "rw") return kRemoteRead | kRemoteWrite;
  throw StatusError{{Code::kInvalidArgument, "access '" + access + "' must be 'r', 'w' or 'rw'"}};
}

std::string access_name(std::uint8_t access) {
  std::string name;
  if (access & kRemoteRead) name += 'r';
  if (access & kRemoteWrite) name += 'w';
  return name;
}

void bind_region(py::module_& module) {
  py::class_<RegionInfo>(module, "RegionInfo", "What a peer may know of a region of registered memory. Immutable.")
      .def_property_readonly("id", [](const RegionInfo& self) { return self.key.id; })
      .def_property_readonly("generation", [](const RegionInfo& self) { return self.key.generation; })
      .def_property_readonly("name", [](const RegionInfo& self) { return text(self.name); })
      .def_property_readonly("length_bytes", [](const RegionInfo& self) { return self.length; })
      .def_property_readonly(
          "access", [](const RegionInfo& self) { return access_name(self.access); },
          "What peers may do: 'r', 'w' or 'rw'.")
      .def_property_readonly("kind", [](const RegionInfo& self) { return memory_kind_name(self.kind); })
      .def("__repr__", [](const RegionInfo& self) {
        return py::str("RegionInfo(id={}, generation={}, name={!r}, length_bytes={}, access={!r})")
            .format(self.key.id, self.key.generation, text(self.name), self.length, access_name(self.access));
      });
}

}  // namespace kvferry::python
