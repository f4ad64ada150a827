// TLS before anything else on a TCP connection, if the node has it; and a plain word to who does it the other way.
#pragma once

#include "transport/greeting.h"

namespace kvferry {

Status start_tls_to(Channel& channel, const LocalNode& local, const Wait& wait);
// Whether the caller begins with TLS shows in its first byte. One that does not do as we do is told so.
Status start_tls_from(Channel& channel, const LocalNode& local, const Wait& wait);

}  // namespace kvferry
