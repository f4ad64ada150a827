#include "base/host_id.h"

#include <sys/stat.h>

#include <fstream>
#include <string>

#include "kvferry/node_id.h"

namespace kvferry {
namespace {

std::uint64_t namespace_inode(const char* path) {
  struct stat info {};
  return ::stat(path, &info) == 0 ? static_cast<std::uint64_t>(info.st_ino) : 0;
}

}  // namespace

HostId HostId::current() {
  HostId host;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(file, text);
  std::erase(text, '-');
  const auto parsed = NodeId::parse(text);  // the same form: 128 bits as hex
  if (!parsed.ok()) return {};
  host.boot_id = parsed->bytes;
  host.net_namespace = namespace_inode("/proc/self/ns/net");
  host.pid_namespace = namespace_inode("/proc/self/ns/pid");
  return host.is_nil() ? HostId{} : host;
}

bool HostId::is_nil() const {
  return boot_id == std::array<std::uint8_t, 16>{} || net_namespace == 0 || pid_namespace == 0;
}

}  // namespace kvferry
