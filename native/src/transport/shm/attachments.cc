#include "transport/shm/attachments.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "transport/shm/copy_permission.h"
#include "wire/frame.h"
#include "wire/messages.h"

namespace kvferry {
namespace {

constexpr milliseconds kRequestTimeout{5000};
constexpr milliseconds kLookAgain{100};

Status answer_arena_request(int fd, const Frame& frame, const ArenaTable& arenas, const Wait& wait) {
  if (frame.header.type != FrameType::kArenaRequest) {
    return {Code::kProtocolError,
            "unexpected " + std::string(frame_type_name(frame.header.type)) + " on a shared memory attachment"};
  }
  KVF_ASSIGN_OR_RETURN(const wire::ArenaRequest request, wire::ArenaRequest::decode(frame.body));
  const auto grant = arenas.grant(request.arena_index);
  if (!grant.ok()) {
    const wire::Error error{grant.status().code(), grant.status().message()};
    return send_frame(fd, FrameType::kError, frame.header.request_id, error.encode(), wait);
  }
  const wire::ArenaGrant answer{request.arena_index, grant->length};
  const std::array<int, 1> fds{grant->fd.get()};
  return send_frame_with_fds(fd, FrameType::kArena, frame.header.request_id, answer.encode(), fds, wait);
}

}  // namespace

class ShmAttachments::Membership {
 public:
  Membership(ShmAttachments& owner, std::shared_ptr<Attachment> attachment) : owner_(owner) {
    const std::lock_guard lock(owner_.mutex_);
    place_ = owner_.attached_.insert(owner_.attached_.end(), std::move(attachment));
  }
  ~Membership() {
    const std::lock_guard lock(owner_.mutex_);
    owner_.attached_.erase(place_);
  }
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

 private:
  ShmAttachments& owner_;
  std::list<std::shared_ptr<Attachment>>::iterator place_;
};

Status ShmAttachments::serve(int fd, const Interrupt& interrupt, const RegionDirectoryWriter& directory,
                             const ArenaTable& arenas) {
  KVF_ASSIGN_OR_RETURN(CopyLanes lanes, CopyLanes::create());
  KVF_ASSIGN_OR_RETURN(const UniqueFd directory_fd, reopen_read_only(directory.fd()));
  const std::array<int, 2> fds{directory_fd.get(), lanes.fd()};
  const CopyPermission permission;
  const auto attachment = std::make_shared<Attachment>(Attachment{std::move(lanes), fd});
  const Membership membership(*this, attachment);
  Status end = send_frame_with_fds(fd, FrameType::kShmAttached, 0, wire::ShmAttached{kMaxAttachLanes}.encode(), fds,
                                   Wait{deadline_in(kRequestTimeout), &interrupt});
  if (end.ok()) end = answer_requests(fd, interrupt, arenas);
  outlast_copies(*attachment);
  return end;
}

Status ShmAttachments::answer_requests(int fd, const Interrupt& interrupt, const ArenaTable& arenas) const {
  for (;;) {
    KVF_RETURN_IF_ERROR(wait_for(fd, POLLIN, Wait{deadline_in(kLongestWait), &interrupt}));
    const Wait wait{deadline_in(kRequestTimeout), &interrupt};
    KVF_ASSIGN_OR_RETURN(const Frame frame, recv_frame(fd, wait));
    KVF_RETURN_IF_ERROR(answer_arena_request(fd, frame, arenas, wait));
  }
}

// The peer copies on its own: that we are done with it ends none of its copies. So the attachment stays in the list for
// quiesce() to see until its lanes are idle. A copier looks at the socket after it made its lane busy, therefore no
// copy begins in a lane that was seen idle after the end of our stream.
void ShmAttachments::outlast_copies(const Attachment& attachment) const {
  shut_down_sending(attachment.fd);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const auto hung_up = [&] { return is_hung_up(attachment.fd); };
  while (!closed_ && !attachment.lanes.quiesce(deadline_in(kLookAgain), hung_up).ok()) {
  }
}

std::vector<std::shared_ptr<ShmAttachments::Attachment>> ShmAttachments::snapshot() const {
  const std::lock_guard lock(mutex_);
  return {attached_.begin(), attached_.end()};
}

Status ShmAttachments::quiesce(Deadline deadline) const {
  for (const auto& attachment : snapshot()) {
    // Gone from the list means that the peer hung up, or was let go and has stopped copying.
    const auto hung_up = [&] {
      const std::lock_guard lock(mutex_);
      return std::find(attached_.begin(), attached_.end(), attachment) == attached_.end() || is_hung_up(attachment->fd);
    };
    KVF_RETURN_IF_ERROR(attachment->lanes.quiesce(deadline, hung_up));
  }
  return {};
}

}  // namespace kvferry
