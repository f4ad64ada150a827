// Tells whether two processes can see each other's memory and abstract sockets: same boot of the same kernel, same
// network namespace, same pid namespace.
#pragma once

#include <array>
#include <cstdint>

namespace kvferry {

struct HostId {
  std::array<std::uint8_t, 16> boot_id{};
  std::uint64_t net_namespace = 0;  // inode
  std::uint64_t pid_namespace = 0;  // inode

  static HostId current();  // nil where /proc does not tell
  bool is_nil() const;
  bool same_host(const HostId& other) const { return !is_nil() && *this == other; }
  bool operator==(const HostId&) const = default;
};

}  // namespace kvferry
