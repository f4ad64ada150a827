// Access rights and memory kinds as short strings.
#pragma once

#include <cstdint>
#include <string>

#include "kvferry/types.h"

namespace kvferry::python {

std::uint8_t parse_access(const std::string& access);  // "r", "w" or "rw", else StatusError
std::string access_name(std::uint8_t access);
std::string kind_name(MemoryKind kind);

}  // namespace kvferry::python
