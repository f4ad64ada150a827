// The parts of discover_topology(), with the addresses of the interfaces as an input. Pure but for the files read.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kvferry/topology.h"
#include "topology/sysfs.h"

namespace kvferry {

using AddressesByNic = std::map<std::string, std::vector<NicAddress>>;

AddressesByNic addresses_of_this_host();  // from the kernel; empty if it does not tell
Topology read_topology(const sysfs::fs::path& root, const AddressesByNic& addresses);

}  // namespace kvferry
