// The inbound connections that threads are serving: counted against caps, and ended from outside. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
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
  enum class Added {
    kYes,
    kClosed,
    kCrowded
  };  // kCrowded: the oldest caller without a proven identity has to go for it

  // At most `capacity` connections of known nodes; callers that did not finish the handshake have room of their own, so
  // that they cannot keep others out.
  explicit ConnectionSet(std::size_t capacity) : capacity_(capacity) {}

  Added add(const std::shared_ptr<InboundConnection>& connection);
  // The handshake is done. False: too many connections.
  bool set_node(const InboundConnection& connection, const NodeId& node);
  // The number that `node` gave its data connection. False: it was fenced already.
  bool set_number(const InboundConnection& connection, std::uint32_t number);
  void remove(const InboundConnection& connection);  // its thread will not touch any memory of a region any more
  void interrupt_node(const NodeId& node);           // ends the connections of a node
  // Ends the data connection and waits until it is removed; one that is not known yet will be refused. False: it is
  // still there at the deadline.
  bool fence(const NodeId& node, std::uint32_t number, Deadline deadline);
  void close();  // ends all; no add() succeeds afterwards

 private:
  struct Entry {
    std::shared_ptr<InboundConnection> connection;
    NodeId node;               // nil: the handshake is not done
    std::uint32_t number = 0;  // 0: not known, or no data connection
  };
  Entry* find_locked(const InboundConnection& connection);
  std::size_t count_locked(bool known) const;
  bool is_there_locked(const NodeId& node, std::uint32_t number) const;

  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable removed_;
  std::list<Entry> entries_;                            // oldest first; guarded by mutex_, as are those below
  std::map<NodeId, std::deque<std::uint32_t>> fenced_;  // before they were known; the latest of each node
  bool closed_ = false;
};

}  // namespace kvferry
