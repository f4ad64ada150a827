#include "engine/inbox.h"

#include <utility>

#include "base/deadline.h"

namespace kvferry {

// Beyond the room of all, each sender still has its share. The shares shrink as senders come, so n of them that fill
// the room one after the other have at most 1 + 1/2 + ... + 1/n times as much waiting.
bool Inbox::has_room_locked(const Backlog& sender, std::size_t body_bytes) const {
  if (queue_.size() < kMaxMessages && bytes_ + body_bytes <= kMaxBytes) return true;
  const std::size_t senders = backlogs_.size();  // this one included
  return sender.messages < kMaxMessages / senders && sender.bytes + body_bytes <= kMaxBytes / senders;
}

Status Inbox::refusal_locked(const Backlog& sender) const {
  return {Code::kResourceExhausted,
          std::to_string(sender.messages) + " of its messages wait here unread, " + std::to_string(queue_.size()) +
              " (" + std::to_string(bytes_) + " bytes) with those of others; no more are kept (" +
              std::to_string(kMaxMessages) + ", " + std::to_string(kMaxBytes) +
              " bytes): the application must take them by next_message, best in a thread that does nothing else"};
}

Status Inbox::push(Message message) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return {};  // nobody will ask for it
    const auto sender = backlogs_.try_emplace(message.peer).first;
    if (!has_room_locked(sender->second, message.body.size())) {
      const Status refusal = refusal_locked(sender->second);
      if (sender->second.messages == 0) backlogs_.erase(sender);
      return refusal;
    }
    ++sender->second.messages;
    sender->second.bytes += message.body.size();
    bytes_ += message.body.size();
    queue_.push_back(std::move(message));
  }
  arrived_.notify_one();
  return {};
}

std::optional<Message> Inbox::pop(milliseconds timeout) {
  std::unique_lock lock(mutex_);
  arrived_.wait_until(lock, deadline_in(timeout), [&] { return closed_ || !queue_.empty(); });
  if (queue_.empty()) return std::nullopt;
  Message message = std::move(queue_.front());
  queue_.pop_front();
  bytes_ -= message.body.size();
  const auto sender = backlogs_.find(message.peer);
  sender->second.bytes -= message.body.size();
  if (--sender->second.messages == 0) backlogs_.erase(sender);
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
