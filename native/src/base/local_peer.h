// Which user holds the other end of a TCP connection within this host. The kernel tells: unlike for unix sockets not
// over the socket itself, but by the tables that ss(8) shows.
#pragma once

#include <sys/types.h>

#include "kvferry/status.h"

namespace kvferry {

// For a connected TCP socket whose peer is a process of this network namespace. kUnavailable if the tables do not have
// it: the peer is on another host, has just closed its end, or the kernel hides them.
Result<uid_t> user_of_local_peer(int fd);

}  // namespace kvferry
