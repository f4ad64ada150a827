// Discovery over a made-up machine and over none at all, and what this machine gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fake_machine.h"
#include "kvferry/topology.h"
#include "topology/numa_distances.h"
#include "topology/read_topology.h"

namespace kvferry {
namespace {

const Nic& nic_named(const Topology& topology, std::string_view name) {
  const auto found =
      std::find_if(topology.nics.begin(), topology.nics.end(), [&](const Nic& nic) { return nic.name == name; });
  EXPECT_NE(found, topology.nics.end()) << name;
  return *found;
}

class TwoNodes : public ::testing::Test {
 protected:
  const FakeMachine machine_{"two_node_machine.txt"};
  const Topology topology_ = read_topology(machine_.root(), {{"eth0", {{"10.0.0.1", 24}, {"fe80::1%eth0", 64}}}});
};

TEST_F(TwoNodes, NumaNodesHaveCpusMemoryAndDistances) {
  ASSERT_EQ(topology_.nodes.size(), 2u);
  EXPECT_EQ(topology_.nodes[1].id, 1);
  EXPECT_EQ(topology_.nodes[0].cpus, "0-15,32-47");
  EXPECT_EQ(topology_.nodes[0].memory_bytes, 256ull << 30);
  EXPECT_EQ(topology_.nodes[1].distances, (std::vector<int>{21, 10}));
  const NumaDistances distances(topology_);
  EXPECT_EQ(distances.between(0, 0), 10);
  EXPECT_EQ(distances.between(1, 0), 21);
  for (const int other : {-1, 7}) EXPECT_EQ(distances.between(0, other), NumaDistances::kUnknown) << other;
}

TEST_F(TwoNodes, NicsHaveSpeedStatePlaceAndAddresses) {
  ASSERT_EQ(topology_.nics.size(), 5u);
  const Nic& fast = nic_named(topology_, "eth0");
  EXPECT_TRUE(fast.up);
  EXPECT_FALSE(fast.loopback);
  EXPECT_EQ(fast.speed_mbit, 100000u);
  EXPECT_EQ(fast.numa_node, 0);
  EXPECT_EQ(fast.pci_address, "0000:19:00.0");
  ASSERT_EQ(fast.addresses.size(), 2u);
  EXPECT_EQ(fast.addresses[0].host, "10.0.0.1");
  EXPECT_EQ(fast.addresses[0].prefix_length, 24u);
  const Nic& unplugged = nic_named(topology_, "eth3");
  EXPECT_FALSE(unplugged.up);
  EXPECT_EQ(unplugged.speed_mbit, 0u);
  EXPECT_EQ(unplugged.numa_node, 1);
  const Nic& loopback = nic_named(topology_, "lo");
  EXPECT_TRUE(loopback.loopback);
  EXPECT_TRUE(loopback.up);
  EXPECT_EQ(loopback.pci_address, "");
  EXPECT_EQ(loopback.numa_node, -1);
}

TEST_F(TwoNodes, RdmaDevicesBelongToTheirNicHoweverTheKernelSaysIt) {
  EXPECT_EQ(nic_named(topology_, "eth0").rdma_devices, std::vector<std::string>{"mlx5_0"});  // one PCI device
  EXPECT_EQ(nic_named(topology_, "eth1").rdma_devices, std::vector<std::string>{"rxe0"});    // its parent
  EXPECT_EQ(nic_named(topology_, "eth2").rdma_devices, std::vector<std::string>{"mlx5_1"});  // its port
  EXPECT_EQ(topology_.notes, std::vector<std::string>{"RDMA device mlx5_9 belongs to no network interface"});
}

TEST_F(TwoNodes, AcceleratorsAreFoundByVendorAndClass) {
  std::vector<std::string> found;
  for (const Accelerator& one : topology_.accelerators) {
    found.push_back(one.vendor + " " + one.pci_address + " node " + std::to_string(one.numa_node));
  }
  EXPECT_EQ(found, (std::vector<std::string>{"nvidia 0000:1a:00.0 node 0", "nvidia 0000:31:00.0 node 0",
                                             "amd 0000:9b:00.0 node 1", "ascend 0000:b1:00.0 node 1"}));
}

TEST_F(TwoNodes, DistanceFollowsBridgesRootsAndNodes) {
  const auto distance = [&](const char* nic, std::size_t accelerator) {
    return distance_name(pci_distance(nic_named(topology_, nic), topology_.accelerators[accelerator]));
  };
  EXPECT_EQ(distance("eth0", 0), "same switch");
  EXPECT_EQ(distance("eth1", 0), "same root");
  EXPECT_EQ(distance("eth0", 1), "same node");
  EXPECT_EQ(distance("eth0", 2), "cross");
  EXPECT_EQ(distance("eth2", 2), "same switch");
  EXPECT_EQ(distance("lo", 0), "cross");
}

TEST_F(TwoNodes, EnginesAreListedOnce) {
  EXPECT_EQ(topology_.engines, std::vector<std::string>{"00112233445566778899aabbccddeeff"});
}

TEST(Topology, AMachineThatShowsNothingGivesNotesOnly) {
  const Topology topology = discover_topology("/nonexistent/root");
  EXPECT_TRUE(topology.nodes.empty());
  EXPECT_TRUE(topology.nics.empty());
  EXPECT_TRUE(topology.accelerators.empty());
  ASSERT_EQ(topology.notes.size(), 3u);
  EXPECT_EQ(topology.notes[0], "NUMA nodes: /nonexistent/root/sys/devices/system/node shows none");
}

TEST(Topology, ThisMachineHasALoopbackAddress) {
  const Topology topology = discover_topology();
  const bool found = std::any_of(topology.nics.begin(), topology.nics.end(), [](const Nic& nic) {
    return std::any_of(nic.addresses.begin(), nic.addresses.end(), [](const NicAddress& address) {
      return address.host == "127.0.0.1" && address.prefix_length == 8;
    });
  });
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace kvferry
