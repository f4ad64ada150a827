#include "engine/local_rails.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/limits.h"
#include "base/subnet.h"

namespace kvferry {
namespace {

Status bad(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

Result<Endpoint> address(const std::string& host) {
  const bool ipv6 = host.find(':') != std::string::npos && !host.starts_with('[');
  return Endpoint::parse((ipv6 ? "[" + host + "]" : host) + ":0");
}

// Every 127.x.y.z is an address of the loopback interface, though it lists one only.
const Nic* nic_of(const Topology& machine, const std::string& host) {
  for (const Nic& nic : machine.nics) {
    for (const NicAddress& known : nic.addresses) {
      const unsigned bits = nic.loopback ? known.prefix_length : 128;
      if (same_subnet(known.host, host, bits)) return &nic;
    }
  }
  return nullptr;
}

// The address of an interface: of the family of `bind`, and not one that needs a zone, if there is another.
Result<Endpoint> address_of(const Nic& nic, const Endpoint& bind) {
  std::string found;
  for (const NicAddress& known : nic.addresses) {
    const auto endpoint = address(known.host);
    if (!endpoint.ok() || endpoint->family() != bind.family()) continue;
    if (found.empty() || known.host.find('%') == std::string::npos) found = known.host;
    if (found.find('%') == std::string::npos) return address(found);
  }
  if (!found.empty()) return address(found);
  const char* const family = bind.family() == Endpoint::Family::kIPv6 ? "IPv6" : "IPv4";
  return bad("interface " + nic.name + " has no " + family + " address; give one, or name another interface");
}

Result<LocalRail> resolve(const std::string& name, const Endpoint& bind, const Topology& machine) {
  const auto named =
      std::find_if(machine.nics.begin(), machine.nics.end(), [&](const Nic& nic) { return nic.name == name; });
  LocalRail rail;
  const Nic* nic = nullptr;
  if (named != machine.nics.end()) {
    nic = &*named;
    KVF_ASSIGN_OR_RETURN(rail.endpoint, address_of(*nic, bind));
  } else {
    const auto given = address(name);
    if (!given.ok()) return bad("'" + name + "' is neither an interface of this host nor an IP address");
    rail.endpoint = *given;
    nic = nic_of(machine, rail.endpoint.host());
    if (nic == nullptr) return bad("no interface of this host has the address " + name);
  }
  rail.nic = nic->name;
  rail.speed_mbit = nic->speed_mbit;
  rail.numa_node = nic->numa_node;
  for (const NicAddress& known : nic->addresses) {
    if (same_subnet(known.host, rail.endpoint.host(), known.prefix_length)) rail.prefix_length = known.prefix_length;
  }
  return rail;
}

Status check_rail(const LocalRail& rail, const EngineOptions& options, const std::vector<LocalRail>& earlier) {
  const std::string& host = rail.endpoint.host();
  const auto& allowed = options.device;
  if (!allowed.empty() && std::find(allowed.begin(), allowed.end(), rail.nic) == allowed.end()) {
    return bad(host + " is on interface " + rail.nic + ", which is not among `device`");
  }
  if (std::any_of(earlier.begin(), earlier.end(),
                  [&](const LocalRail& one) { return one.endpoint == rail.endpoint; })) {
    return bad(host + " is listed twice");
  }
  if (rail.endpoint.is_loopback() || !options.cluster_secret.empty()) return {};
  return bad(host + " is reachable from other hosts: set cluster_secret (at least " + std::to_string(kMinSecretBytes) +
             " bytes)");
}

}  // namespace

Result<std::vector<LocalRail>> local_rails(const EngineOptions& options, const Endpoint& bind,
                                           const Topology& machine) {
  const bool by_device = options.rails.empty();
  const std::vector<std::string>& names = by_device ? options.device : options.rails;
  const std::string option = by_device ? "device: " : "rails: ";  // the one to correct
  if (names.size() > kMaxRails) {
    return bad(option + std::to_string(names.size()) + " are given; at most " + std::to_string(kMaxRails) +
               " are possible");
  }
  std::vector<LocalRail> rails;
  for (const std::string& name : names) {
    Result<LocalRail> rail = resolve(name, bind, machine);
    const Status status = rail.ok() ? check_rail(*rail, options, rails) : rail.status();
    if (!status.ok()) return bad(option + status.message());
    rails.push_back(std::move(*rail));
  }
  if (options.numa_aware && options.preferred_numa_node >= 0) {
    std::stable_partition(rails.begin(), rails.end(),
                          [&](const LocalRail& rail) { return rail.numa_node == options.preferred_numa_node; });
  }
  return rails;
}

}  // namespace kvferry
