#include "base/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <fstream>
#include <string>

namespace kvferry {
namespace {

constexpr int kMaxNode = 1024;  // as many as any kernel is built for
constexpr std::size_t kBitsPerWord = 8 * sizeof(unsigned long);
using NodeMask = std::array<unsigned long, kMaxNode / kBitsPerWord>;

std::optional<std::vector<int>> read_id_list(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  return parse_id_list(text);
}

void add_node(NodeMask* mask, int node) {
  if (node < 0 || node >= kMaxNode) return;
  const auto bit = static_cast<std::size_t>(node);
  (*mask)[bit / kBitsPerWord] |= 1ul << bit % kBitsPerWord;
}

// "3" or "0-3"
bool add_range(std::string_view text, std::vector<int>* ids) {
  constexpr int kMaxId = 1 << 16;
  const char* const end = text.data() + text.size();
  int first = 0;
  auto parsed = std::from_chars(text.data(), end, first);
  int last = first;
  if (parsed.ec == std::errc{} && parsed.ptr != end && *parsed.ptr == '-') {
    parsed = std::from_chars(parsed.ptr + 1, end, last);
  }
  if (parsed.ec != std::errc{} || parsed.ptr != end || first < 0 || last < first || last > kMaxId) return false;
  for (int id = first; id <= last; ++id) ids->push_back(id);
  return true;
}

}  // namespace

std::optional<std::vector<int>> parse_id_list(std::string_view text) {
  while (text.ends_with('\n') || text.ends_with(' ')) text.remove_suffix(1);
  std::vector<int> ids;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    if (comma + 1 == text.size()) return std::nullopt;
    if (!add_range(text.substr(0, comma), &ids)) return std::nullopt;
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  return ids;
}

std::vector<int> numa_nodes() {
  auto nodes = read_id_list("/sys/devices/system/node/has_memory");
  if (!nodes || nodes->empty()) return {0};
  std::sort(nodes->begin(), nodes->end());
  return *std::move(nodes);
}

Result<NumaPlacement> numa_placement(bool aware, int preferred, const std::vector<int>& nodes) {
  if (!aware || nodes.size() < 2) return NumaPlacement{};
  if (preferred >= 0 && std::find(nodes.begin(), nodes.end(), preferred) == nodes.end()) {
    std::string known;
    for (const int node : nodes) known += (known.empty() ? "" : ", ") + std::to_string(node);
    return {Code::kInvalidArgument, "preferred_numa_node " + std::to_string(preferred) +
                                        " has no memory on this host; choose from " + known + ", or -1 for none"};
  }
  if (preferred >= 0) return NumaPlacement{NumaPlacement::Kind::kPreferred, preferred};
  return NumaPlacement{NumaPlacement::Kind::kInterleaved, 0};
}

Status place_memory(void* data, std::uint64_t length, const NumaPlacement& placement) {
  if (placement.kind == NumaPlacement::Kind::kDefault) return {};
  NodeMask mask{};
  int mode = MPOL_PREFERRED;
  if (placement.kind == NumaPlacement::Kind::kPreferred) {
    add_node(&mask, placement.node);
  } else {
    mode = MPOL_INTERLEAVE;
    for (const int node : numa_nodes()) add_node(&mask, node);
  }
  // The kernel takes one bit less than it is told.
  if (::syscall(SYS_mbind, data, length, mode, mask.data(), kMaxNode + 1, 0) == 0) return {};
  return errno_status(errno == ENOSYS || errno == EPERM ? Code::kUnsupported : Code::kInvalidArgument,
                      "cannot place memory on NUMA nodes", errno);
}

std::optional<int> numa_node_of(const void* address) {
  const void* pages[] = {address};
  int status = -1;
  if (::syscall(SYS_move_pages, 0, 1ul, pages, nullptr, &status, 0) != 0 || status < 0) return std::nullopt;
  return status;
}

std::optional<int> numa_node_of(const void* data, std::uint64_t length) {
  constexpr std::uint64_t kLooks = 8;
  std::optional<int> node;
  for (std::uint64_t look = 0; look < kLooks && length > 0; ++look) {
    const auto found = numa_node_of(static_cast<const std::byte*>(data) + (length - 1) / (kLooks - 1) * look);
    if (!found || found != node.value_or(*found)) return std::nullopt;
    node = found;
  }
  return node;
}

Status run_on_node(int node) {
  const auto cpus = read_id_list("/sys/devices/system/node/node" + std::to_string(node) + "/cpulist");
  cpu_set_t allowed, wanted;
  CPU_ZERO(&allowed);
  CPU_ZERO(&wanted);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return errno_status(Code::kUnsupported, "sched_getaffinity", errno);
  }
  for (const int cpu : cpus.value_or(std::vector<int>{})) {
    if (cpu < CPU_SETSIZE && CPU_ISSET(static_cast<std::size_t>(cpu), &allowed)) {
      CPU_SET(static_cast<std::size_t>(cpu), &wanted);
    }
  }
  if (CPU_COUNT(&wanted) == 0) {
    return {Code::kUnsupported, "NUMA node " + std::to_string(node) + " has no CPU that this process may use"};
  }
  if (::sched_setaffinity(0, sizeof(wanted), &wanted) == 0) return {};
  return errno_status(Code::kUnsupported, "sched_setaffinity", errno);
}

}  // namespace kvferry
