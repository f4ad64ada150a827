#include "engine/thread_group.h"

#include <pthread.h>

#include <system_error>
#include <utility>

namespace kvferry {

Status ThreadGroup::spawn(std::string name, std::function<void()> body) {
  reap();
  std::lock_guard lock(mutex_);
  if (closed_) return {Code::kCancelled, "the engine is closed"};
  Member& member = members_.emplace_back();
  try {
    member.thread = std::thread([this, &member, name = std::move(name), body = std::move(body)]() mutable {
      pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
      body();
      body = nullptr;  // what the thread owned goes before it counts as finished
      std::lock_guard inner(mutex_);
      member.finished = true;
    });
  } catch (const std::system_error& error) {
    members_.pop_back();
    return {Code::kResourceExhausted, std::string("cannot start a thread: ") + error.what()};
  }
  return {};
}

std::list<ThreadGroup::Member> ThreadGroup::take_finished() {
  std::list<Member> done;
  std::lock_guard lock(mutex_);
  for (auto it = members_.begin(); it != members_.end();) {
    auto next = std::next(it);
    if (it->finished) done.splice(done.end(), members_, it);
    it = next;
  }
  return done;
}

void ThreadGroup::reap() {
  for (Member& member : take_finished()) member.thread.join();
}

void ThreadGroup::join_all() {
  std::list<Member> all;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    all.splice(all.end(), members_);
  }
  for (Member& member : all) member.thread.join();
}

}  // namespace kvferry
