// The threads of one engine: named, counted, joined. Finished ones are joined at the next spawn() or reap().
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "kvferry/status.h"

namespace kvferry {

class ThreadGroup {
 public:
  ThreadGroup() = default;
  ~ThreadGroup() { join_all(); }
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  // `name` has at most 15 characters. kResourceExhausted if the system has no more threads, kCancelled after
  // join_all().
  Status spawn(std::string name, std::function<void()> body);
  void reap();      // joins finished threads; does not wait for running ones
  void join_all();  // no spawn() succeeds afterwards; must not be called by a member thread

 private:
  struct Member {
    std::thread thread;
    bool finished = false;
  };
  std::list<Member> take_finished();

  mutable std::mutex mutex_;
  std::list<Member> members_;  // guarded by mutex_
  bool closed_ = false;        // guarded by mutex_
};

}  // namespace kvferry
