#include "store/log/file_io.h"

#include <algorithm>

#include "base/deadline.h"
#include "store/log/format.h"

namespace kvferry::store::log {
namespace {

constexpr std::uint64_t kWindowBytes = 256 << 10;
constexpr milliseconds kPatience{60000};

}  // namespace

Status FileIo::run(IoRequest::Kind kind, const LogFile& file, std::uint64_t offset, std::span<std::byte> memory) {
  status_ = {};
  KVF_ASSIGN_OR_RETURN(const QueuePool::Lease lease, queues_.take(deadline_));
  RequestPump pump(lease.queue(), lease.bounce(), deadline_, *this);
  if (kind == IoRequest::Kind::kSyncData) pump.start({kind, file.fd.get()});
  for (std::uint64_t at = 0; at < memory.size() && status_.ok(); at += kRequestBytes) {
    const auto length = static_cast<std::uint32_t>(std::min<std::uint64_t>(kRequestBytes, memory.size() - at));
    pump.start({kind, file.fd.get(), memory.data() + at, length, offset + at});
  }
  pump.finish();
  return status_.with_context(file.path);
}

void FileIo::part_ended(const IoPart& part, const Status& status) {
  if (status_.ok()) status_ = status;
  if (status.ok() && part.kind != IoRequest::Kind::kRead) queues_.note_progress();
}

ByteView Window::get(std::uint64_t offset, std::uint64_t length) {
  if (offset >= begin_ && offset + length <= end_) return {memory_.data() + (offset - begin_), length};
  const std::uint64_t from = offset / kUnit * kUnit;
  const std::uint64_t last = last_ / kUnit * kUnit;
  if (from >= last || length > last - from || offset + length > last) return {};
  const std::uint64_t wanted = whole_units(std::max(kWindowBytes, offset + length - from));
  const std::uint64_t bytes = std::min(wanted, last - from);
  if (memory_.size() < bytes) memory_ = AlignedBuffer(bytes);
  begin_ = end_ = 0;
  if (memory_.data() == nullptr) return {};
  if (!FileIo(queues_, deadline_in(kPatience)).read(file_, from, memory_.span().first(bytes)).ok()) return {};
  begin_ = from;
  end_ = from + bytes;
  return {memory_.data() + (offset - begin_), length};
}

}  // namespace kvferry::store::log
