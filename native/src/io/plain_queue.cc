#include "io/plain_queue.h"

#include <unistd.h>

#include <cerrno>

namespace kvferry {
namespace {

long perform(const IoRequest& request) {
  const auto offset = static_cast<off_t>(request.offset);
  switch (request.kind) {
    case IoRequest::Kind::kRead:
      return ::pread(request.fd, request.data, request.length, offset);
    case IoRequest::Kind::kWrite:
      return ::pwrite(request.fd, request.data, request.length, offset);
    case IoRequest::Kind::kSyncData:
      return ::fdatasync(request.fd);
    case IoRequest::Kind::kSyncFull:
      break;
  }
  return ::fsync(request.fd);
}

}  // namespace

void PlainQueue::wait(Deadline, std::vector<IoResult>* done) {
  if (waiting_.empty()) return;
  const IoRequest request = waiting_.front();
  waiting_.pop_front();
  if (cancelled_) {
    done->push_back({request.tag, -ECANCELED});
  } else {
    const long moved = perform(request);
    done->push_back({request.tag, moved < 0 ? -errno : moved});
  }
  if (waiting_.empty()) cancelled_ = false;
}

}  // namespace kvferry
