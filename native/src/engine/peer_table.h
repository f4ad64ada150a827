// The live peers of an engine, by handle. Thread-safe. Handles start at 1 and are never used again.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kvferry/node_id.h"
#include "kvferry/status.h"

namespace kvferry {

class PeerImpl;

class PeerTable {
 public:
  std::uint64_t next_handle() { return ++last_handle_; }
  bool add(const std::shared_ptr<PeerImpl>& peer);  // false after close()
  bool remove(const PeerImpl& peer);                // it is lost; false if it was not there
  std::shared_ptr<PeerImpl> find(std::uint64_t handle) const;
  // Not OK: why find() has nobody by this handle, with the name of who that was.
  Status missing(std::uint64_t handle) const;
  bool has_node(const NodeId& node) const;
  std::vector<std::shared_ptr<PeerImpl>> list() const;
  std::vector<std::shared_ptr<PeerImpl>> close();  // no add() succeeds afterwards; returns who was there

 private:
  std::atomic<std::uint64_t> last_handle_{0};
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<PeerImpl>> peers_;  // guarded by mutex_
  bool closed_ = false;                                       // guarded by mutex_
  std::map<std::uint64_t, std::string> lost_;                 // who and why, the last ones; guarded by mutex_
};

}  // namespace kvferry
