#include "engine/answers.h"

namespace kvferry {

Answers::Added Answers::add(Answer answer) {
  const std::lock_guard lock(mutex_);
  if (waiting_.size() >= kMaxWaiting) return Added::kTooMany;
  waiting_.push_back(answer);
  if (has_sender_) return Added::kYes;
  has_sender_ = true;
  return Added::kStartSender;
}

std::optional<Answers::Answer> Answers::next() {
  const std::lock_guard lock(mutex_);
  has_sender_ = !waiting_.empty();
  if (!has_sender_) return std::nullopt;
  const Answer answer = waiting_.front();
  waiting_.pop_front();
  return answer;
}

void Answers::abandon() {
  const std::lock_guard lock(mutex_);
  has_sender_ = false;
}

}  // namespace kvferry
