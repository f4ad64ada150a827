// Lets the owner of memory wait until no same-host peer is copying from or to it any more, although those peers copy
// without asking. One page per attachment, shared by memfd: a counter per copying thread, odd while it copies.
//
// Copier:  begin(lane); resolve in the directory; copy; check again; end(lane).
// Owner:   withdraw from the directory; quiesce(): every lane that was odd has moved on.
// Both sides use sequentially consistent operations, so a copier that the owner sees idle will see the withdrawal.
// A peer that dies or misbehaves delays the owner only until `hung_up` says so, or the deadline.
#pragma once

#include <cstdint>
#include <functional>

#include "base/limits.h"
#include "kvferry/status.h"
#include "kvferry/types.h"
#include "memory/arena.h"

namespace kvferry {

class CopyLanes {
 public:
  static Result<CopyLanes> create();
  static Result<CopyLanes> map(UniqueFd fd);

  int fd() const { return memory_.fd(); }
  // lane < kMaxAttachLanes, each used by one thread at a time.
  void begin(std::uint32_t lane);
  void end(std::uint32_t lane);
  // kDeadlineExceeded if a lane that was copying at the call is still in that copy at the deadline.
  Status quiesce(Deadline deadline, const std::function<bool()>& hung_up) const;

  class Scope {  // begin and end
   public:
    Scope(CopyLanes& lanes, std::uint32_t lane) : lanes_(lanes), lane_(lane) { lanes_.begin(lane_); }
    ~Scope() { lanes_.end(lane_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    CopyLanes& lanes_;
    std::uint32_t lane_;
  };

 private:
  explicit CopyLanes(Arena memory) : memory_(std::move(memory)) {}
  Arena memory_;
};

}  // namespace kvferry
