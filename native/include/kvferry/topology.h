// What this machine is made of, as far as moving bytes is concerned: NUMA nodes, network interfaces, accelerators, and
// how far they are from each other. Read from /sys and /proc alone: no driver library is opened.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry {

struct NumaNode {
  int id = 0;
  std::string cpus;                // as the kernel writes it: "0-15,32-47"; empty: memory without CPUs
  std::uint64_t memory_bytes = 0;  // 0: unknown
  std::vector<int> distances;      // to every node, in the order of Topology::nodes; 10 is local
};

struct NicAddress {
  std::string host;  // as Endpoint::host(): numeric, an IPv6 link-local one with its zone
  unsigned prefix_length = 0;
};

struct Nic {
  std::string name;
  bool up = false;
  bool loopback = false;
  std::uint32_t speed_mbit = 0;  // 0: unknown, as for virtual interfaces
  int numa_node = -1;            // -1: none or unknown
  std::string pci_address;       // "0000:17:00.0"; empty: no PCI device
  std::string pci_path;          // from the root complex down: "pci0000:16/0000:16:02.0/0000:17:00.0"
  std::vector<NicAddress> addresses;
  std::vector<std::string> rdma_devices;
};

struct Accelerator {
  std::string vendor;  // "nvidia", "amd" or "ascend"
  std::string pci_address;
  std::string pci_path;
  int numa_node = -1;
};

struct Topology {
  std::vector<NumaNode> nodes;            // by id
  std::vector<Nic> nics;                  // by name
  std::vector<Accelerator> accelerators;  // by PCI address
  std::vector<std::string> engines;       // node ids of the engines with shared memory in this network namespace
  std::vector<std::string> notes;         // what could not be read
};

// Looks at this machine; never fails. `root` other than "/" is a copy of another machine's /sys and /proc: it has no
// interface addresses. Takes a few milliseconds.
Topology discover_topology(const std::string& root = "/");

enum class PciDistance : std::uint8_t {
  kSameSwitch,  // below one PCIe bridge: traffic between them need not pass the CPU
  kSameRoot,    // below one root complex
  kSameNode,    // on one NUMA node
  kCross,       // between NUMA nodes, or unknown
};
std::string_view distance_name(PciDistance distance);  // "same switch", ...
PciDistance pci_distance(const Nic& nic, const Accelerator& accelerator);

}  // namespace kvferry
