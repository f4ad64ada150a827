// The engine as other layers of this library use it: they see messages before the inbox does, and learn of lost peers.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "kvferry/engine.h"

namespace kvferry {

// Called without locks, until close() has returned. Neither may wait for anything: they hold up a peer's connection.
struct EngineHooks {
  // By the thread that reads the peer's control connection. nullopt: not ours, it goes to the inbox. `body` may be
  // moved from otherwise; a status that is not OK ends the connection.
  std::function<std::optional<Status>(std::uint64_t peer, Bytes& body)> on_message;
  // Once per peer, from any thread; calls on the peer fail by then.
  std::function<void(std::uint64_t peer, const Status& why)> on_lost;
  // await_message() reads the connection, so that on_message may be called by any thread that waits in it. What comes
  // of a peer's own accord may then be taken up to 20 ms late.
  bool callers_read = false;
};

class HookedEngine : public Engine {
 public:
  static Result<std::unique_ptr<HookedEngine>> create(EngineOptions options, EngineHooks hooks);
  // As send(), but waits for nobody: kUnavailable if another thread is sending, or the socket has no room.
  virtual Status try_send(std::uint64_t peer_handle, ByteView body) = 0;
  // Returns when done(), which a message of that peer brings about; or after sleep(), which waits for that by itself,
  // within the same deadline.
  virtual void await_message(std::uint64_t peer_handle, const std::function<bool()>& done,
                             const std::function<void()>& sleep, Deadline deadline) = 0;
  // The process of a peer some memory of which is mapped here (Peer::map), as the kernel names it. nullopt: not known.
  virtual std::optional<pid_t> process_of(std::uint64_t peer_handle) const = 0;
};

}  // namespace kvferry
