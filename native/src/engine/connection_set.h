// The inbound connections that threads are serving: counted against a cap, and ended from outside. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "base/socket.h"
#include "kvferry/node_id.h"
#include "wire/channel.h"

namespace kvferry {

// One inbound connection; its thread owns it. The descriptor is closed with it.
class InboundConnection {
 public:
  InboundConnection(UniqueFd fd, Interrupt interrupt, bool same_host)
      : channel_(std::move(fd)), interrupt_(std::move(interrupt)), same_host_(same_host) {}

  int fd() const { return channel_.fd(); }
  Channel& channel() { return channel_; }
  const Interrupt& interrupt() const { return interrupt_; }
  bool same_host() const { return same_host_; }  // came by the unix listener
  Channel take_channel() {
    return std::move(channel_);
  }  // only by the serving thread; the set knows only the interrupt

 private:
  Channel channel_;
  const Interrupt interrupt_;
  const bool same_host_;
};

class ConnectionSet {
 public:
  explicit ConnectionSet(std::size_t capacity) : capacity_(capacity) {}

  bool add(const std::shared_ptr<InboundConnection>& connection);  // false: full or closed
  void set_node(const InboundConnection& connection, const NodeId& node);
  void remove(const InboundConnection& connection);
  void interrupt_node(const NodeId& node);  // ends the connections of a node
  void close();                             // ends all; no add() succeeds afterwards

 private:
  struct Entry {
    std::shared_ptr<InboundConnection> connection;
    NodeId node;
  };
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // guarded by mutex_
  bool closed_ = false;       // guarded by mutex_
};

}  // namespace kvferry
