#include "engine/keeper.h"

#include <algorithm>

#include "base/deadline.h"
#include "engine/core.h"
#include "engine/peer.h"
#include "engine/self_peer.h"

namespace kvferry {
namespace {

constexpr milliseconds kShortestTick{5};

}  // namespace

Deadline Keeper::tick(EngineCore& core) {
  const Clock::time_point now = Clock::now();
  Deadline next = deadline_in(std::max(core.options.idle_probe / 2, kShortestTick));
  for (const auto& peer : core.peers.list()) {
    peer->keep_alive(now);
    next = sooner(next, peer->expire(now));
  }
  if (const auto self = core.self.lock()) next = sooner(next, self->expire(now));
  core.threads.reap();
  return std::max(next, now + kShortestTick);
}

void Keeper::run(EngineCore& core) {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    next_ = Deadline::max();  // expect() between tick and sleep lowers it again
    lock.unlock();
    const Deadline due = tick(core);
    lock.lock();
    next_ = sooner(next_, due);
    while (!stopped_ && Clock::now() < next_) wake_.wait_until(lock, next_);
  }
}

void Keeper::expect(Deadline deadline) {
  {
    std::lock_guard lock(mutex_);
    if (deadline >= next_) return;
    next_ = deadline;
  }
  wake_.notify_one();
}

void Keeper::stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_one();
}

}  // namespace kvferry
