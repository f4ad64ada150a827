#include "io/uring_queue.h"

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <thread>
#include <utility>

#include "base/deadline.h"

namespace kvferry {
namespace {

constexpr std::uint32_t kEntries = 128;  // half of it for requests, so that each can be cancelled at once
constexpr std::uint64_t kChunkBytes = 16u << 20;
constexpr std::uint32_t kBufferPlaces = 256;  // at most 4 GiB of memory stay pinned for this ring
constexpr std::uint32_t kFilePlaces = 64;
constexpr std::uint64_t kCancelTag = ~std::uint64_t{0};
constexpr std::chrono::milliseconds kPause{1};
constexpr Deadline kNoWait{};  // long ago; the earliest that there is cannot be subtracted from

std::vector<std::uint32_t> all_places(int table_error, std::uint32_t count) {
  std::vector<std::uint32_t> places(table_error == 0 ? count : 0);
  std::iota(places.rbegin(), places.rend(), 0u);
  return places;
}

std::string refusal(int error) {
  if (error == ENOMEM) return "RLIMIT_MEMLOCK is too low";
  return errno_status(Code::kUnsupported, "the kernel refuses", error).message();
}

}  // namespace

Result<std::unique_ptr<IoQueue>> UringQueue::create() {
  KVF_ASSIGN_OR_RETURN(Ring ring, Ring::create(kEntries));
  return std::unique_ptr<IoQueue>(std::make_unique<UringQueue>(std::move(ring)));
}

UringQueue::UringQueue(Ring ring) : ring_(std::move(ring)), depth_(ring_.entries() / 2) {
  const int buffers = ring_.register_buffer_table(kBufferPlaces);
  if (buffers != 0) buffers_note_ = refusal(-buffers);
  free_buffers_ = all_places(buffers, kBufferPlaces);
  free_files_ = all_places(ring_.register_file_table(kFilePlaces), kFilePlaces);
}

std::string UringQueue::note() const {
  const std::lock_guard lock(mutex_);
  return buffers_note_.empty() ? "io_uring" : "io_uring without registered memory: " + buffers_note_;
}

std::int32_t UringQueue::register_chunk_locked(const Memory& memory, std::size_t chunk) {
  if (free_buffers_.empty()) return kRefused;
  const std::uint64_t begin = chunk * kChunkBytes;
  const iovec range{memory.data + begin, static_cast<std::size_t>(std::min(kChunkBytes, memory.length - begin))};
  const int error = ring_.update_buffer(free_buffers_.back(), range);
  if (error != 0) {
    if (error != -ENOMEM) return kRefused;  // this memory cannot be pinned, e.g. a file's; other memory can
    buffers_note_ = refusal(-error);
    free_buffers_.clear();  // asking again for each chunk would cost more than it brings
    return kRefused;
  }
  const auto place = static_cast<std::int32_t>(free_buffers_.back());
  free_buffers_.pop_back();
  return place;
}

std::int32_t UringQueue::buffer_place_locked(const IoRequest& request) {
  const auto known = memories_.find(request.memory);
  if (request.memory == 0 || known == memories_.end() || request.length == 0) return kRefused;
  Memory& memory = known->second;
  const auto begin = static_cast<std::uint64_t>(request.data - memory.data);
  const std::uint64_t chunk = begin / kChunkBytes;
  if (chunk != (begin + request.length - 1) / kChunkBytes) return kRefused;
  std::int32_t& place = memory.places[chunk];
  if (place == kUnknown) place = register_chunk_locked(memory, chunk);
  return place;
}

std::int32_t UringQueue::file_place_locked(int fd) {
  const auto known = files_.find(fd);
  if (known != files_.end()) return known->second;
  if (free_files_.empty() || ring_.update_file(free_files_.back(), fd) != 0) return kRefused;
  const auto place = static_cast<std::int32_t>(free_files_.back());
  free_files_.pop_back();
  files_.emplace(fd, place);
  return place;
}

void UringQueue::fill(uring::Sqe* entry, const IoRequest& request) {
  const std::lock_guard lock(mutex_);
  const std::int32_t file = file_place_locked(request.fd);
  entry->fd = file >= 0 ? file : request.fd;
  entry->flags = file >= 0 ? uring::kSqeFixedFile : std::uint8_t{0};
  entry->user_data = request.tag;
  if (request.kind == IoRequest::Kind::kSyncData || request.kind == IoRequest::Kind::kSyncFull) {
    entry->opcode = uring::kOpFsync;
    entry->op_flags = request.kind == IoRequest::Kind::kSyncData ? uring::kFsyncDataOnly : 0;
    return;
  }
  const std::int32_t buffer = buffer_place_locked(request);
  const bool read = request.kind == IoRequest::Kind::kRead;
  if (buffer >= 0) {
    entry->opcode = read ? uring::kOpReadFixed : uring::kOpWriteFixed;
    entry->buffer_index = static_cast<std::uint16_t>(buffer);
  } else {
    entry->opcode = read ? uring::kOpRead : uring::kOpWrite;
  }
  entry->offset = request.offset;
  entry->address = reinterpret_cast<std::uint64_t>(request.data);
  entry->length = request.length;
}

void UringQueue::start(const IoRequest& request) {
  if (under_way_.size() <= request.tag) under_way_.resize(request.tag + 1, false);
  under_way_[request.tag] = true;
  fill(ring_.next(), request);
}

void UringQueue::begin() { (void)ring_.enter(kNoWait); }  // what the kernel does not take now it is offered again

void UringQueue::cancel_all() {
  for (std::size_t tag = 0; tag < under_way_.size(); ++tag) {
    if (!under_way_[tag]) continue;
    uring::Sqe* entry = ring_.next();
    if (entry == nullptr) {
      (void)ring_.enter(kNoWait);
      entry = ring_.next();
    }
    if (entry == nullptr) return;  // the kernel takes nothing now; what is under way ends by itself
    entry->opcode = uring::kOpAsyncCancel;
    entry->address = tag;
    entry->user_data = kCancelTag;
  }
}

void UringQueue::wait(Deadline until, std::vector<IoResult>* done) {
  const std::size_t before = done->size();
  do {
    // Short of memory the kernel may take nothing for a moment. Whatever it says, we stay: the memory of what is under
    // way is the kernel's until its result has come.
    if (ring_.enter(until) < 0) std::this_thread::sleep_for(kPause);
    uring::Cqe entry;
    while (ring_.pop(&entry)) {
      if (entry.user_data == kCancelTag) continue;
      under_way_[entry.user_data] = false;
      done->push_back({static_cast<std::uint32_t>(entry.user_data), entry.result});
    }
  } while (done->size() == before && !expired(until));
}

void UringQueue::remember_memory(std::uint64_t id, std::byte* data, std::uint64_t length) {
  const std::lock_guard lock(mutex_);
  const std::size_t chunks = static_cast<std::size_t>((length + kChunkBytes - 1) / kChunkBytes);
  memories_.try_emplace(id, Memory{data, length, std::vector<std::int32_t>(chunks, kUnknown)});
}

void UringQueue::forget_memory(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto known = memories_.find(id);
  if (known == memories_.end()) return;
  for (const std::int32_t place : known->second.places) {
    if (place < 0) continue;
    (void)ring_.update_buffer(static_cast<std::uint32_t>(place), {});
    free_buffers_.push_back(static_cast<std::uint32_t>(place));
  }
  memories_.erase(known);
}

void UringQueue::forget_file(int fd) {
  const std::lock_guard lock(mutex_);
  const auto known = files_.find(fd);
  if (known == files_.end()) return;
  (void)ring_.update_file(static_cast<std::uint32_t>(known->second), -1);
  free_files_.push_back(static_cast<std::uint32_t>(known->second));
  files_.erase(known);
}

}  // namespace kvferry
