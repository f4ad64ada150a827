// What was removed stays so when its owner dies, or another node becomes the owner. An owner tells what it removed to
// the member that would own it next, which keeps that, and takes it over when the owner has left; whoever remembers
// removals of what another member owns hands them over before that one is settled. What is put again is told to all.
// Thread-safe.
#pragma once

#include <condition_variable>
#include <mutex>
#include <span>
#include <vector>

#include "engine/thread_group.h"
#include "store/node_core.h"

namespace kvferry::store {

class Removals {
 public:
  explicit Removals(NodeCore& core) : core_(core) {}
  ~Removals() { close(); }
  Status start();
  void close();

  // Those who keep them know of all that was removed here, or are down. Waits for them, at most for suspect_after.
  void tell();
  void tell_soon();  // the same, by a thread: what was put again
  // To a member that is told what moved to it, or all that it owns: what was removed. False: it did not hear.
  bool hand_over(const ClusterView& view, const std::shared_ptr<MemberLink>& link, bool all);
  // To the same: what it must keep for this node.
  bool entrust(const ClusterView& view, const std::shared_ptr<MemberLink>& link);
  // Before other members count: those of owners that are not among them are this node's own, until it hands them over.
  void inherit(const std::vector<Member>& members);

 private:
  bool send(const std::shared_ptr<MemberLink>& link, Removed::To to, std::span<const Removal> removals);
  void run();

  NodeCore& core_;
  std::mutex telling_;  // held while members are told: they hear of each id in order
  std::mutex mutex_;
  std::condition_variable changed_;
  bool wanted_ = false, closed_ = false;  // guarded by mutex_
  ThreadGroup threads_;                   // last: joined first
};

}  // namespace kvferry::store
