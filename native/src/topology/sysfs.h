// Reading the small text files of /sys and /proc: absent or unreadable ones are simply not there.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace kvferry::sysfs {

namespace fs = std::filesystem;

// Without surrounding white space; nothing if the file cannot be read or is empty.
std::optional<std::string> text(const fs::path& file);
// The number a file holds, in C's notation ("0x10de" is one); nothing if it holds none.
std::optional<long long> number(const fs::path& file);
// Names in a folder, sorted; none if it cannot be read.
std::vector<std::string> names(const fs::path& folder);

struct PciPlace {
  std::string address;  // "" if there is no PCI device on the way
  std::string path;     // from the root complex down to the device
  int numa_node = -1;
};
// Of a device folder or a link to one: the nearest PCI device at or above it.
PciPlace pci_place(const fs::path& device);

}  // namespace kvferry::sysfs
