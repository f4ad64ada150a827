#include "topology/sysfs.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <system_error>

namespace kvferry::sysfs {
namespace {

// "0000:17:00.0": domain (4 digits or more), bus, device, function
bool is_pci_address(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot < 10 || dot + 2 != name.size()) return false;
  if (name[dot - 3] != ':' || name[dot - 6] != ':') return false;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0 || c == ':' || c == '.'; });
}

}  // namespace

std::optional<std::string> text(const fs::path& file) {
  std::ifstream stream(file);
  std::string content;
  std::getline(stream, content, '\0');
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t first = content.find_first_not_of(kSpace);
  if (first == std::string::npos) return std::nullopt;
  return content.substr(first, content.find_last_not_of(kSpace) - first + 1);
}

std::optional<long long> number(const fs::path& file) {
  const auto content = text(file);
  if (!content) return std::nullopt;
  char* end = nullptr;
  const long long value = std::strtoll(content->c_str(), &end, 0);
  if (*end != '\0') return std::nullopt;
  return value;
}

std::vector<std::string> names(const fs::path& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    found.push_back(it->path().filename().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

PciPlace pci_place(const fs::path& device) {
  std::error_code error;
  fs::path folder = fs::canonical(device, error);
  if (error) return {};
  while (folder.has_relative_path() && !is_pci_address(folder.filename().string())) folder = folder.parent_path();
  if (!folder.has_relative_path()) return {};
  PciPlace place;
  place.address = folder.filename().string();
  place.numa_node = static_cast<int>(number(folder / "numa_node").value_or(-1));
  for (fs::path up = folder; up.has_relative_path(); up = up.parent_path()) {
    const std::string name = up.filename().string();
    place.path = place.path.empty() ? name : name + "/" + place.path;
    if (name.starts_with("pci")) return place;  // the root complex
  }
  place.path = place.address;  // a device without a root complex above it: near nothing
  return place;
}

}  // namespace kvferry::sysfs
