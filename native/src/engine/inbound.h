// What happens to one inbound connection: handshake, then control, data or shared memory service, on its own thread.
#pragma once

#include <memory>

#include "engine/connection_set.h"

namespace kvferry {

struct EngineCore;

// The connection's thread. Returns when the connection has ended; it is removed from EngineCore::inbound then.
void serve_inbound(const std::shared_ptr<EngineCore>& core, const std::shared_ptr<InboundConnection>& connection);

}  // namespace kvferry
