#include "engine/connection_set.h"

#include <algorithm>

namespace kvferry {

bool ConnectionSet::add(const std::shared_ptr<InboundConnection>& connection) {
  std::lock_guard lock(mutex_);
  if (closed_ || entries_.size() >= capacity_) return false;
  entries_.push_back({connection, NodeId{}});
  return true;
}

void ConnectionSet::set_node(const InboundConnection& connection, const NodeId& node) {
  std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.connection.get() == &connection) entry.node = node;
  }
}

void ConnectionSet::remove(const InboundConnection& connection) {
  std::lock_guard lock(mutex_);
  entries_.remove_if([&](const Entry& entry) { return entry.connection.get() == &connection; });
}

void ConnectionSet::interrupt_node(const NodeId& node) {
  std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.node == node) entry.connection->interrupt().set();
  }
}

void ConnectionSet::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  for (const Entry& entry : entries_) entry.connection->interrupt().set();
}

}  // namespace kvferry
