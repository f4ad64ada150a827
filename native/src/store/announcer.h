// Tells the owners what this node holds, in the background: all that it owns to a member that comes up, what moved to
// all of them when the members change, and the truth about single objects that left, or that could not be told when
// they were put. A member is told when it knows the same members as this node: it would forget what it does not own.
// One thread. The callers never wait.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/thread_group.h"
#include "store/removals.h"

namespace kvferry::store {

class Announcer {
 public:
  Announcer(NodeCore& core, Removals& removals) : core_(core), removals_(removals) {}
  ~Announcer() { close(); }
  Status start();
  void close();

  void member_up(const std::shared_ptr<MemberLink>& link);  // tell it all that it owns
  // The members are about to change: until they have heard it, owners may believe that they know all that is put here.
  // Waits for them, at most for suspect_after; who does not answer, and stays, is down from then on. With
  // core_.members_mutex.
  void view_will_change(const ClusterView& before, const std::vector<Member>& members);
  void view_changed(std::shared_ptr<const ClusterView> before);
  // These left this node, or their owner may believe so, or may not know of them. Any number; what is waiting is
  // dropped beyond a million: the next change of members tells it.
  void tell(std::vector<ObjectId> ids);

 private:
  using Views = std::vector<std::shared_ptr<const ClusterView>>;
  struct News {
    std::shared_ptr<MemberLink> up;
    std::shared_ptr<const ClusterView> before;  // the members changed
  };
  struct Debt {  // what a member has yet to be told
    std::shared_ptr<MemberLink> link;
    bool all = false;                // that it owns
    Views since;                     // or what it did not own in one of these views
    Clock::time_point not_before{};  // tried again then
    Announce batch;
    bool failed = false;  // just now
  };
  void run();
  std::optional<Clock::time_point> next_work() const;  // when to go on even if nothing new comes
  void take(const News& news);
  void view_has_changed(const std::shared_ptr<const ClusterView>& before);
  void pay_debts();
  std::vector<Debt*> due(const ClusterView& view);
  bool begin(const ClusterView& view, const Debt& debt);
  bool announce_held(const std::shared_ptr<const ClusterView>& view, const std::vector<Debt*>& debts);
  bool flush(Debt& debt);
  bool say_settled(const std::shared_ptr<const ClusterView>& view, const Debt& debt);
  bool send(const std::shared_ptr<MemberLink>& link, const Announce& announce);
  bool take_answer(const std::shared_ptr<MemberLink>& link, const Announce& announce, const Announce::Answer& answer);
  std::vector<ObjectId> tell_owners(const std::vector<ObjectId>& ids);
  std::vector<ObjectId> tell_here(const std::shared_ptr<MemberLink>& owner, std::vector<Announce::Item> items);
  std::vector<ObjectId> tell_gone(const std::shared_ptr<MemberLink>& owner, std::vector<ObjectId> ids);

  NodeCore& core_;
  Removals& removals_;
  std::map<NodeId, Debt> debts_;  // by the thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<News> news_;              // guarded by mutex_, as is what follows
  std::vector<ObjectId> ids_, again_;  // to be told now; and at again_at_
  Clock::time_point again_at_{};
  bool closed_ = false;
  ThreadGroup threads_;
};

}  // namespace kvferry::store
