// The two listening sockets of an engine: TCP for everybody, unix abstract for processes of this host.
#pragma once

#include <memory>

#include "base/socket.h"
#include "kvferry/endpoint.h"

namespace kvferry {

struct EngineCore;

class Listener {
 public:
  static Result<Listener> open(const Endpoint& endpoint);

  const Endpoint& endpoint() const { return endpoint_; }  // with the port that the kernel chose
  // The accepting thread: until the interrupt is set. Each connection gets a thread of its own.
  void run(const std::shared_ptr<EngineCore>& core, const Interrupt& stop) const;
  void close() { fd_.reset(); }  // after run() has returned: who waits in the backlog is reset

 private:
  Listener(UniqueFd fd, Endpoint endpoint) : fd_(std::move(fd)), endpoint_(std::move(endpoint)) {}
  void admit(const std::shared_ptr<EngineCore>& core, UniqueFd fd) const;

  UniqueFd fd_;
  Endpoint endpoint_;
};

}  // namespace kvferry
