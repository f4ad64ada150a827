// What a node does by itself, in the background: repair after a member's death, replicas of hot objects, news of the
// members to clients, tidying. One thread, which waits for other members. The callers never wait.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "engine/thread_group.h"
#include "store/replicator.h"

namespace kvferry::store {

class Caretaker {
 public:
  Caretaker(NodeCore& core, Replicator& replicator, Announcer& announcer)
      : core_(core), replicator_(replicator), announcer_(announcer) {}
  ~Caretaker() { close(); }
  Status start();
  void close();
  void wake() { push(nullptr); }         // the members changed, or one has told all that it holds
  void push(std::function<void()> job);  // work that may wait; dropped if too much is waiting

  // Moves all that is held to other members; the count of what could not be moved until the deadline.
  std::uint64_t drain(Deadline deadline);
  bool demote(const ObjectId& id);  // to a member that has room
  // Has that member tell all that it holds and this node owns: the news of the members makes it.
  void ask_for_all(const NodeId& member);

 private:
  static constexpr std::size_t kMostJobs = 4096;
  void run();
  void look_after();
  void remind();
  bool forget_moved(const std::shared_ptr<const ClusterView>& view);
  void tell_clients(const ClusterView& view);
  void repair(const ClusterView& view);
  std::vector<Wanting> lacking(const ClusterView& view) const;
  std::uint64_t move_away(const std::vector<ObjectId>& ids, Deadline deadline);

  NodeCore& core_;
  Replicator& replicator_;
  Announcer& announcer_;
  // By the thread.
  std::uint64_t told_view_ = 0;
  std::uint64_t repaired_for_ = 0, repaired_after_ = 0;  // members, incidents
  Clock::time_point repaired_at_{};
  std::map<NodeId, Clock::time_point> silent_since_;  // members that must tell all, or when they were asked
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;  // guarded by mutex_
  bool closed_ = false;                     // guarded by mutex_
  ThreadGroup threads_;
};

}  // namespace kvferry::store
