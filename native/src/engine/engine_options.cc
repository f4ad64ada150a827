#include "engine/engine_options.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/limits.h"
#include "base/sha256.h"

namespace kvferry {
namespace {

constexpr std::array<std::string_view, 2> kTransports{"shm", "tcp"};
constexpr std::uint32_t kMaxStreams = 64;

Status bad(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

Status check_transports(const std::vector<std::string>& transports) {
  if (transports.empty()) return bad("transports is empty; name at least one of shm, tcp");
  for (std::size_t i = 0; i < transports.size(); ++i) {
    const std::string& name = transports[i];
    if (std::find(kTransports.begin(), kTransports.end(), name) == kTransports.end()) {
      return bad("transport '" + name + "' is not known to this build; choose from shm, tcp");
    }
    if (std::find(transports.begin(), transports.begin() + static_cast<std::ptrdiff_t>(i), name) !=
        transports.begin() + static_cast<std::ptrdiff_t>(i)) {
      return bad("transport '" + name + "' is listed twice");
    }
  }
  return {};
}

Status check_positive(milliseconds value, std::string_view name) {
  return value.count() > 0 ? Status() : bad(std::string(name) + " must be longer than 0");
}

Status check_tls(const EngineOptions& options) {
  const bool any = !options.tls_cert_file.empty() || !options.tls_key_file.empty() || !options.tls_ca_file.empty();
  const bool all = !options.tls_cert_file.empty() && !options.tls_key_file.empty() && !options.tls_ca_file.empty();
  if (any && !options.tls) return bad("tls is off, but files for it are given: set tls, or drop tls_*_file");
  if (any != all) return bad("tls_cert_file, tls_key_file and tls_ca_file go together; one or two of them are missing");
  if (options.tls && !any && options.cluster_secret.empty()) {
    return bad("tls needs a key: set cluster_secret, or tls_cert_file, tls_key_file and tls_ca_file");
  }
  return {};
}

}  // namespace

Status check_options(const EngineOptions& options) {
  KVF_RETURN_IF_ERROR(check_transports(options.transports));
  if (options.metadata.size() > kMaxMetadataBytes) {
    return bad("metadata has " + std::to_string(options.metadata.size()) + " bytes; at most " +
               std::to_string(kMaxMetadataBytes) + " are allowed");
  }
  if (!options.cluster_secret.empty() && options.cluster_secret.size() < kMinSecretBytes) {
    return bad("cluster_secret is shorter than " + std::to_string(kMinSecretBytes) + " bytes");
  }
  KVF_RETURN_IF_ERROR(check_tls(options));
  if (options.tcp_streams == 0 || options.tcp_streams > kMaxStreams) return bad("tcp_streams must be 1 to 64");
  if (options.shm_lanes > kMaxAttachLanes) return bad("shm_lanes must be 0 (automatic) to 16");
  if (options.max_connections == 0) return bad("max_connections must be at least 1");
  if (options.slice_bytes == 0) return bad("slice_bytes must be at least 1");
  if (options.preferred_numa_node < -1) return bad("preferred_numa_node must be the number of a node, or -1 for none");
  KVF_RETURN_IF_ERROR(check_positive(options.link_timeout, "link_timeout"));
  KVF_RETURN_IF_ERROR(check_positive(options.connect_timeout, "connect_timeout"));
  KVF_RETURN_IF_ERROR(check_positive(options.transfer_timeout, "transfer_timeout"));
  return check_positive(options.idle_probe, "idle_probe");
}

Result<std::shared_ptr<const TlsContext>> tls_context(const EngineOptions& options) {
  if (!options.tls) return std::shared_ptr<const TlsContext>();
  TlsIdentity identity{options.tls_cert_file, options.tls_key_file, options.tls_ca_file, {}};
  hkdf_sha256({}, as_byte_view(options.cluster_secret), as_byte_view("kvferry tls 1"), identity.key);
  KVF_ASSIGN_OR_RETURN(std::shared_ptr<const TlsContext> context, TlsContext::create(identity));
  return context;
}

Result<std::string> tls_library() {
  KVF_ASSIGN_OR_RETURN(const TlsLibrary* const library, TlsLibrary::get());
  return library->version;
}

Result<Endpoint> bind_endpoint(const EngineOptions& options) {
  const auto endpoint = Endpoint::parse(options.bind);
  if (!endpoint.ok()) return endpoint.status().with_context("bind");
  if (endpoint->family() == Endpoint::Family::kUnix) return bad("bind must be an IP address with a port");
  if (!endpoint->is_loopback() && options.cluster_secret.empty()) {
    return bad("bind " + options.bind + " is reachable from other hosts: set cluster_secret (at least " +
               std::to_string(kMinSecretBytes) + " bytes), or bind to 127.0.0.1");
  }
  return endpoint;
}

Result<Endpoint> advertised_endpoint(const EngineOptions& options, const Endpoint& bound) {
  if (options.advertise.empty()) {
    if (!bound.is_wildcard()) return bound;
    return bad("bind " + bound.to_string() + " is a wildcard: set advertise to the address peers should use");
  }
  const auto endpoint = Endpoint::parse(options.advertise);
  if (!endpoint.ok()) return endpoint.status().with_context("advertise");
  if (endpoint->is_wildcard()) return bad("advertise " + options.advertise + " is a wildcard: peers cannot reach it");
  if (endpoint->is_loopback() && !bound.is_loopback()) {
    return bad("advertise " + options.advertise +
               " is this host's own loopback: peers elsewhere would reach themselves "
               "there. Set it to an address of this host that they can reach, or bind to loopback, too");
  }
  return endpoint->port() == 0 ? endpoint->with_port(bound.port()) : *endpoint;
}

}  // namespace kvferry
