#include "engine/connection_set.h"

#include <algorithm>

namespace kvferry {
namespace {

constexpr std::size_t kMaxUnknown = 256;  // callers in the handshake: a burst of a large cluster's start
constexpr std::size_t kFencedRememberedPerNode = 256;

}  // namespace

ConnectionSet::Entry* ConnectionSet::find_locked(const InboundConnection& connection) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.connection.get() == &connection; });
  return found == entries_.end() ? nullptr : &*found;
}

std::size_t ConnectionSet::count_locked(bool known) const {
  return static_cast<std::size_t>(std::count_if(entries_.begin(), entries_.end(),
                                                [&](const Entry& entry) { return entry.node.is_nil() != known; }));
}

ConnectionSet::Added ConnectionSet::add(const std::shared_ptr<InboundConnection>& connection) {
  std::lock_guard lock(mutex_);
  if (closed_) return Added::kClosed;
  const bool crowded = count_locked(false) >= kMaxUnknown;
  if (crowded) {
    const auto oldest = std::find_if(entries_.begin(), entries_.end(), [](const Entry& entry) {
      return entry.node.is_nil() && !entry.connection->interrupt().is_set();
    });
    if (oldest != entries_.end()) oldest->connection->interrupt().set();
  }
  entries_.push_back({connection, NodeId{}, 0});
  return crowded ? Added::kCrowded : Added::kYes;
}

bool ConnectionSet::set_node(const InboundConnection& connection, const NodeId& node) {
  std::lock_guard lock(mutex_);
  if (count_locked(true) >= capacity_) return false;
  if (Entry* const entry = find_locked(connection)) entry->node = node;
  return true;
}

bool ConnectionSet::set_number(const InboundConnection& connection, std::uint32_t number) {
  std::lock_guard lock(mutex_);
  Entry* const entry = find_locked(connection);
  if (entry == nullptr) return false;
  const auto fenced = fenced_.find(entry->node);
  if (fenced != fenced_.end() && std::count(fenced->second.begin(), fenced->second.end(), number) > 0) return false;
  entry->number = number;
  return true;
}

void ConnectionSet::remove(const InboundConnection& connection) {
  {
    std::lock_guard lock(mutex_);
    entries_.remove_if([&](const Entry& entry) { return entry.connection.get() == &connection; });
  }
  removed_.notify_all();
}

void ConnectionSet::interrupt_node(const NodeId& node) {
  std::lock_guard lock(mutex_);
  fenced_.erase(node);  // none of its connections is taken any more
  for (const Entry& entry : entries_) {
    if (entry.node == node) entry.connection->interrupt().set();
  }
}

bool ConnectionSet::is_there_locked(const NodeId& node, std::uint32_t number) const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const Entry& entry) { return entry.number == number && entry.node == node; });
}

bool ConnectionSet::fence(const NodeId& node, std::uint32_t number, Deadline deadline) {
  std::unique_lock lock(mutex_);
  // What is sent over a connection and what is sent about it may be read in any order.
  std::deque<std::uint32_t>& fenced = fenced_[node];
  fenced.push_back(number);
  if (fenced.size() > kFencedRememberedPerNode) fenced.pop_front();
  for (const Entry& entry : entries_) {
    if (entry.number == number && entry.node == node) entry.connection->interrupt().set();
  }
  return removed_.wait_until(lock, deadline, [&] { return !is_there_locked(node, number); });
}

void ConnectionSet::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  for (const Entry& entry : entries_) entry.connection->interrupt().set();
}

}  // namespace kvferry
