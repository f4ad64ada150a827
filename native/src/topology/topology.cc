#include "kvferry/topology.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>

#include "kvferry/node_id.h"
#include "topology/read_topology.h"
#include "topology/sysfs.h"

namespace kvferry {
namespace {

using sysfs::fs::path;

std::optional<int> node_number(std::string_view name) {
  if (!name.starts_with("node") || name.size() == 4) return std::nullopt;
  int number = 0;
  for (const char digit : name.substr(4)) {
    if (digit < '0' || digit > '9' || number > 100'000) return std::nullopt;
    number = number * 10 + (digit - '0');
  }
  return number;
}

// "Node 0 MemTotal:       24684092 kB" is a line of the file.
std::uint64_t memory_of(const path& meminfo) {
  const std::string content = sysfs::text(meminfo).value_or("");
  const std::size_t begin = content.find("MemTotal:");
  if (begin == std::string::npos) return 0;
  return std::strtoull(content.c_str() + begin + 9, nullptr, 10) * 1024;
}

std::vector<int> distances_of(const path& file) {
  std::vector<int> distances;
  std::ifstream stream(file);
  for (int distance = 0; stream >> distance;) distances.push_back(distance);
  return distances;
}

void read_nodes(const path& folder, Topology* out) {
  for (const std::string& name : sysfs::names(folder)) {
    const auto id = node_number(name);
    if (!id) continue;
    out->nodes.push_back({*id, sysfs::text(folder / name / "cpulist").value_or(""),
                          memory_of(folder / name / "meminfo"), distances_of(folder / name / "distance")});
  }
  std::sort(out->nodes.begin(), out->nodes.end(), [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  if (out->nodes.empty()) out->notes.push_back("NUMA nodes: " + folder.string() + " shows none");
}

constexpr long long kLoopbackType = 772;  // ARPHRD_LOOPBACK

void read_nics(const path& folder, const AddressesByNic& addresses, Topology* out) {
  for (const std::string& name : sysfs::names(folder)) {
    const path at = folder / name;
    const auto type = sysfs::number(at / "type");
    if (!type) continue;  // a file such as bonding_masters, or an interface that is gone again
    Nic nic;
    nic.name = name;
    nic.loopback = *type == kLoopbackType;
    const std::string state = sysfs::text(at / "operstate").value_or("");
    constexpr long long kUpFlag = 1;  // IFF_UP; drivers that do not watch the link call it "unknown"
    nic.up = state == "up" || (state == "unknown" && (sysfs::number(at / "flags").value_or(0) & kUpFlag) != 0);
    nic.speed_mbit = static_cast<std::uint32_t>(std::max(0LL, sysfs::number(at / "speed").value_or(0)));
    const sysfs::PciPlace place = sysfs::pci_place(at / "device");
    nic.numa_node = place.numa_node;
    nic.pci_address = place.address;
    nic.pci_path = place.path;
    if (const auto known = addresses.find(name); known != addresses.end()) nic.addresses = known->second;
    out->nics.push_back(std::move(nic));
  }
  if (out->nics.empty()) out->notes.push_back("network interfaces: " + folder.string() + " shows none");
}

// Software devices name their interface; others say it per port, older kernels by the common PCI device only.
Nic* nic_of_rdma_device(const path& device, Topology* out) {
  std::string name = sysfs::text(device / "parent").value_or("");
  for (const std::string& port : sysfs::names(device / "ports")) {
    if (name.empty()) name = sysfs::text(device / "ports" / port / "gid_attrs/ndevs/0").value_or("");
  }
  const sysfs::PciPlace place = sysfs::pci_place(device / "device");
  for (Nic& nic : out->nics) {
    if (name.empty() ? !place.address.empty() && nic.pci_address == place.address : nic.name == name) return &nic;
  }
  return nullptr;
}

void read_rdma_devices(const path& folder, Topology* out) {
  for (const std::string& name : sysfs::names(folder)) {
    Nic* const nic = nic_of_rdma_device(folder / name, out);
    if (nic != nullptr) {
      nic->rdma_devices.push_back(name);
    } else {
      out->notes.push_back("RDMA device " + name + " belongs to no network interface");
    }
  }
}

struct AcceleratorKind {
  long long vendor;
  long long pci_class;  // base class and subclass
  const char* name;
};
constexpr std::array<AcceleratorKind, 8> kAccelerators{{
    {0x10de, 0x0300, "nvidia"},  // VGA controller
    {0x10de, 0x0302, "nvidia"},  // 3D controller
    {0x1002, 0x0300, "amd"},
    {0x1002, 0x0302, "amd"},
    {0x1002, 0x0380, "amd"},     // display controller
    {0x1002, 0x1200, "amd"},     // processing accelerator
    {0x19e5, 0x1200, "ascend"},  // Huawei
    {0x19e5, 0x0302, "ascend"},
}};

void read_accelerators(const path& folder, Topology* out) {
  const std::vector<std::string> devices = sysfs::names(folder);
  if (devices.empty()) out->notes.push_back("PCI devices: " + folder.string() + " shows none");
  for (const std::string& name : devices) {
    const long long vendor = sysfs::number(folder / name / "vendor").value_or(0);
    const long long pci_class = sysfs::number(folder / name / "class").value_or(0) >> 8;
    for (const AcceleratorKind& kind : kAccelerators) {
      if (kind.vendor != vendor || kind.pci_class != pci_class) continue;
      const sysfs::PciPlace place = sysfs::pci_place(folder / name);
      out->accelerators.push_back({kind.name, name, place.path, place.numa_node});
    }
  }
}

// Engines listen on "@kvferry-<node id>"; the kernel lists a name once per connection, too.
void read_engines(const path& file, Topology* out) {
  constexpr std::string_view kName = "@kvferry-";
  std::ifstream table(file);
  for (std::string line; std::getline(table, line);) {
    const std::size_t at = line.rfind(' ');
    if (at == std::string::npos || !std::string_view(line).substr(at + 1).starts_with(kName)) continue;
    const auto id = NodeId::parse(std::string_view(line).substr(at + 1 + kName.size()));
    if (id.ok()) out->engines.push_back(id->to_string());
  }
  std::sort(out->engines.begin(), out->engines.end());
  out->engines.erase(std::unique(out->engines.begin(), out->engines.end()), out->engines.end());
}

}  // namespace

Topology read_topology(const path& root, const AddressesByNic& addresses) {
  Topology out;
  read_nodes(root / "sys/devices/system/node", &out);
  read_nics(root / "sys/class/net", addresses, &out);
  read_rdma_devices(root / "sys/class/infiniband", &out);
  read_accelerators(root / "sys/bus/pci/devices", &out);
  read_engines(root / "proc/net/unix", &out);
  return out;
}

Topology discover_topology(const std::string& root) {
  return read_topology(root, root == "/" ? addresses_of_this_host() : AddressesByNic{});
}

std::string_view distance_name(PciDistance distance) {
  switch (distance) {
    case PciDistance::kSameSwitch:
      return "same switch";
    case PciDistance::kSameRoot:
      return "same root";
    case PciDistance::kSameNode:
      return "same node";
    case PciDistance::kCross:
      return "cross";
  }
  return "cross";
}

PciDistance pci_distance(const Nic& nic, const Accelerator& accelerator) {
  const std::string& a = nic.pci_path;
  const std::string& b = accelerator.pci_path;
  std::size_t common = 0;  // folders that both paths begin with
  for (std::size_t i = 0; i < a.size() && i < b.size() && a[i] == b[i]; ++i) {
    if (a[i] == '/') ++common;
  }
  if (common >= 2) return PciDistance::kSameSwitch;
  if (common == 1) return PciDistance::kSameRoot;
  const bool same_node = nic.numa_node >= 0 && nic.numa_node == accelerator.numa_node;
  return same_node ? PciDistance::kSameNode : PciDistance::kCross;
}

}  // namespace kvferry
