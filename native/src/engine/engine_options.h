// Checks of EngineOptions before anything is started. Pure.
#pragma once

#include "kvferry/endpoint.h"
#include "kvferry/engine.h"

namespace kvferry {

// kInvalidArgument with the option's name, what is wrong and what to do.
Status check_options(const EngineOptions& options);
// What to listen on: an IP address; off loopback only with a cluster secret.
Result<Endpoint> bind_endpoint(const EngineOptions& options);
// What peers are told: `advertise` (port 0 or missing: the bound port), else the bound address.
Result<Endpoint> advertised_endpoint(const EngineOptions& options, const Endpoint& bound);

}  // namespace kvferry
