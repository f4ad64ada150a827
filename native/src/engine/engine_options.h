// Checks of EngineOptions before anything is started. Pure, but for the files that tls_context() reads.
#pragma once

#include <memory>

#include "base/tls.h"
#include "kvferry/endpoint.h"
#include "kvferry/engine.h"

namespace kvferry {

// kInvalidArgument with the option's name, what is wrong and what to do.
Status check_options(const EngineOptions& options);
// What the connections of this node share, or nullptr: without TLS. The key is derived from the cluster secret unless
// there are certificates. kUnsupported: no OpenSSL, with what to install.
Result<std::shared_ptr<const TlsContext>> tls_context(const EngineOptions& options);
// What to listen on: an IP address; off loopback only with a cluster secret.
Result<Endpoint> bind_endpoint(const EngineOptions& options);
// What peers are told: `advertise` (port 0 or missing: the bound port), else the bound address.
Result<Endpoint> advertised_endpoint(const EngineOptions& options, const Endpoint& bound);

}  // namespace kvferry
