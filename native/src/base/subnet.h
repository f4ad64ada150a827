// Whether two numeric addresses are of one network.
#pragma once

#include <string>

namespace kvferry {

// Hosts as Endpoint::host() writes them. False for different families, and for a prefix of 0 bits (unknown).
bool same_subnet(const std::string& a, const std::string& b, unsigned prefix_length);

}  // namespace kvferry
