#include "transport/file/file_queues.h"

#include "io/plain_queue.h"
#include "io/uring_queue.h"

namespace kvferry {

std::uint64_t memory_id(RegionKey key) { return (std::uint64_t{key.id} << 32) | key.generation; }

std::shared_ptr<IoQueue> FileQueues::create() {
  std::shared_ptr<IoQueue> queue;
  std::string why = "io_uring is switched off";
  if (use_uring_) {
    Result<std::unique_ptr<IoQueue>> uring = UringQueue::create();
    if (uring.ok()) {
      queue = *std::move(uring);
    } else {
      why = uring.status().message();
    }
  }
  if (!queue) queue = std::make_shared<PlainQueue>(why);
  const std::lock_guard lock(mutex_);
  std::erase_if(queues_, [](const auto& other) { return other.expired(); });
  queues_.push_back(queue);
  return queue;
}

std::vector<std::shared_ptr<IoQueue>> FileQueues::alive() {
  std::vector<std::shared_ptr<IoQueue>> out;
  const std::lock_guard lock(mutex_);
  for (const auto& weak : queues_) {
    if (auto queue = weak.lock()) out.push_back(std::move(queue));
  }
  return out;
}

std::string FileQueues::note() {
  const auto queues = alive();
  return queues.empty() ? create()->note() : queues.front()->note();
}

void FileQueues::forget_memory(RegionKey key) {
  for (const auto& queue : alive()) queue->forget_memory(memory_id(key));
}

void FileQueues::forget_file(const OpenFile& file) {
  for (const auto& queue : alive()) {
    queue->forget_file(file.buffered_fd());
    if (file.direct_fd() >= 0) queue->forget_file(file.direct_fd());
  }
}

}  // namespace kvferry
