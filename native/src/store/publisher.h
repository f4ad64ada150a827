// Makes objects visible: the owner of the id is told first, so that no two objects of one id are ever both visible,
// then the local store commits, unless what the owner was told is out of date by then: then it is told again. Thread-
// safe; waits for owners, at most three times suspect_after for those that do not answer, and until the deadline.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "store/announcer.h"
#include "store/finder.h"

namespace kvferry::store {

struct Claim {
  Session session = 0;
  PutId put = 0;
  Directory::Announced object;
  std::optional<Clock::time_point> copied;  // from a holder that was asked then
  // The outcome.
  Status status;  // kConflict; kNotFound: removed meanwhile, or the put's lease ended
  bool created = false;
  std::uint32_t replicas = 0;  // known to exist, this one included
  bool done = false;
  int silences = 0;  // of owners that were told, since one has answered
};

class Publisher {
 public:
  Publisher(NodeCore& core, Finder& finder, Announcer& announcer, Removals& removals)
      : core_(core), finder_(finder), announcer_(announcer), removals_(removals) {}

  // True: nobody else need be asked, publish() would not wait.
  bool is_quick(std::span<const Claim> claims) const;
  void publish(std::span<Claim> claims, Deadline deadline);
  // For the owner of the ids: which of them name other bytes than some member holds. Asks the members if need be.
  bool needs_asking(const ClusterView& view, const Directory::Announced& object) const;
  std::vector<bool> find_conflicts(const ClusterView& view, std::span<const Directory::Announced> objects,
                                   const NodeId& asker, Deadline deadline);

 private:
  void try_once(const std::shared_ptr<const ClusterView>& view, std::span<Claim> claims, Deadline deadline);
  void claim_here(const ClusterView& view, std::span<Claim*> claims, Deadline deadline);
  bool commit(Claim& claim);
  void commit_untold(Claim& claim, std::vector<ObjectId>* late);
  void settle(Claim& claim, const Announce::Done& done);
  void refuse(Claim& claim, Status why);

  NodeCore& core_;
  Finder& finder_;
  Announcer& announcer_;
  Removals& removals_;
};

}  // namespace kvferry::store
