// Tells the owners what this node holds, in the background: when a member comes up, when the members change, when
// objects leave, and what could not be told when it was put. One thread. The callers never wait.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/thread_group.h"
#include "store/node_core.h"

namespace kvferry::store {

class Announcer {
 public:
  explicit Announcer(NodeCore& core) : core_(core) {}
  ~Announcer() { close(); }
  Status start();
  void close();

  void member_up(const std::shared_ptr<MemberLink>& link);       // tell it all that it owns
  void view_changed(std::shared_ptr<const ClusterView> before);  // tell the new owners what they own now
  void retract(std::span<const ObjectId> ids);                   // these left this node
  void retry(std::vector<ObjectId> ids);                         // these are held, but their owner may not know

 private:
  using Batches = std::map<MemberLink*, std::pair<std::shared_ptr<MemberLink>, Announce>>;
  struct Job {
    std::shared_ptr<MemberLink> only;           // set: a member that came up
    std::shared_ptr<const ClusterView> before;  // set: the members changed
    std::vector<ObjectId> gone, again;
  };
  void push(Job job);
  void run();
  void handle(const Job& job);
  void announce_to(const std::shared_ptr<MemberLink>& link);
  void announce_moved(const ClusterView& before);
  void announce_again(const std::vector<ObjectId>& ids);
  void tell_gone(const std::vector<ObjectId>& ids);
  // To each member that `owner_of` names for it; null: nobody need be told.
  void announce_held(const ClusterView& view,
                     const std::function<std::shared_ptr<MemberLink>(const ObjectId&)>& owner_of, Batches& batches);
  void add(Batches& batches, const std::shared_ptr<MemberLink>& owner, const ObjectId& id, const Held& held);
  bool send(const std::shared_ptr<MemberLink>& link, const Announce& announce);
  void flush(Batches& batches);
  void hand_over_removals(const ClusterView& view, const std::shared_ptr<MemberLink>& link);
  void say_settled(const std::shared_ptr<MemberLink>& link, std::uint64_t fingerprint);

  NodeCore& core_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // guarded by mutex_
  bool closed_ = false;   // guarded by mutex_
  ThreadGroup threads_;
};

}  // namespace kvferry::store
