#include "engine/inbox.h"

#include <utility>

#include "base/deadline.h"

namespace kvferry {

bool Inbox::push(Message message) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return true;  // nobody will ask for it
    if (queue_.size() >= kMaxMessages || bytes_ + message.body.size() > kMaxBytes) return false;
    bytes_ += message.body.size();
    queue_.push_back(std::move(message));
  }
  arrived_.notify_one();
  return true;
}

std::optional<Message> Inbox::pop(milliseconds timeout) {
  std::unique_lock lock(mutex_);
  arrived_.wait_until(lock, deadline_in(timeout), [&] { return closed_ || !queue_.empty(); });
  if (queue_.empty()) return std::nullopt;
  Message message = std::move(queue_.front());
  queue_.pop_front();
  bytes_ -= message.body.size();
  return message;
}

void Inbox::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  arrived_.notify_all();
}

}  // namespace kvferry
