// The owner's side of same-host access: peers that are attached, and how to wait until none of them copies.
// Thread-safe.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "base/socket.h"
#include "memory/arena_table.h"
#include "memory/copy_lanes.h"
#include "memory/region_directory.h"

namespace kvferry {

class ShmAttachments {
 public:
  // The serving thread of one attachment: hands out the directory and arenas until the peer hangs up (kPeerLost), the
  // interrupt (kCancelled) or an error. Returns only when the peer no longer copies, or after close().
  Status serve(int fd, const Interrupt& interrupt, const RegionDirectoryWriter& directory, const ArenaTable& arenas);

  // Returns once every copy that was running at the call has ended, or its peer is gone. kDeadlineExceeded.
  Status quiesce(Deadline deadline) const;
  void close() { closed_ = true; }  // serving threads wait for no copies any more

 private:
  struct Attachment {
    CopyLanes lanes;
    int fd = -1;  // borrowed from serve(), valid while the attachment is in the list
  };
  class Membership;  // in the list while it lives
  Status answer_requests(int fd, const Interrupt& interrupt, const ArenaTable& arenas) const;
  void outlast_copies(const Attachment& attachment) const;
  std::vector<std::shared_ptr<Attachment>> snapshot() const;

  mutable std::mutex mutex_;                         // also held while quiesce() looks at descriptors
  std::list<std::shared_ptr<Attachment>> attached_;  // guarded by mutex_
  std::atomic<bool> closed_{false};
};

}  // namespace kvferry
