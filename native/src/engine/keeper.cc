#include "engine/keeper.h"

#include <algorithm>

#include "base/deadline.h"
#include "engine/core.h"
#include "engine/lane_pool.h"
#include "engine/peer.h"
#include "engine/self_peer.h"
#include "engine/transfer.h"

namespace kvferry {
namespace {

constexpr milliseconds kShortestTick{5};
constexpr milliseconds kComesBack{250};  // an interrupted lane, on a busy machine; see Rail::execute()
constexpr milliseconds kCutAgain{5};     // while somebody touches the memory

}  // namespace

Deadline Keeper::tick(EngineCore& core) {
  const Clock::time_point now = Clock::now();
  Deadline next = deadline_in(std::max(core.options.idle_probe / 2, kShortestTick));
  for (const auto& peer : core.peers.list()) {
    peer->keep_alive(now);
    next = sooner(next, peer->expire(now));
  }
  if (const auto self = core.self.lock()) next = sooner(next, self->expire(now));
  next = sooner(next, cut_overdue(now));
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

void Keeper::watch(const std::shared_ptr<TransferImpl>& aborted) {
  const bool asks_owner = aborted->plan().op() == Op::kWrite;
  watch({aborted, deadline_in(asks_owner ? kComesBack + kFencePatience : kComesBack)});
}

void Keeper::watch(Watched one) {
  const Deadline due = one.cut_at;
  {
    const std::lock_guard lock(mutex_);
    watched_.push_back(std::move(one));
  }
  expect(due);
}

Deadline Keeper::cut_overdue(Clock::time_point now) {
  std::vector<std::weak_ptr<TransferImpl>> overdue;
  Deadline next = Deadline::max();
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(watched_, [&](const Watched& one) {
      if (one.cut_at <= now) {
        overdue.push_back(one.transfer);
        return true;
      }
      next = sooner(next, one.cut_at);
      return false;
    });
  }
  for (const auto& weak : overdue) {
    const auto transfer = weak.lock();
    if (transfer && transfer->plan().peer()->lanes().cut(transfer) == LanePool::Cut::kLater) {
      watch({weak, now + kCutAgain});
      next = sooner(next, now + kCutAgain);
    }
  }
  return next;
}

void Keeper::stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_one();
}

}  // namespace kvferry
