// The transfers of one peer and the lanes (threads, one rail each) that move them. Thread-safe.
//
// Lanes take slices from the transfers in turn, so a small transfer waits for at most one slice per lane, not for the
// big transfers before it. A slice whose rail broke is handed back and taken by the next free lane.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/counters.h"
#include "engine/rail_selector.h"
#include "engine/slice.h"

namespace kvferry {

class LanePool {
 public:
  struct Hooks {
    // Starts a thread that keeps this pool alive. The pool's mutex is held during the call.
    std::function<Status(std::string name, std::function<void()> body)> spawn;
    // Sends the transfer's notify message; called by a lane, without locks, before the transfer settles.
    std::function<Status(const TransferImpl&)> notify;
    // Called by a lane that found no way to the peer: why the peer is lost, or OK if it seems alive. May wait a little.
    std::function<Status()> liveness;
  };
  LanePool(std::vector<Transport*> ranked, PeerContext peer, const EngineOptions& options, Counters& counters,
           Hooks hooks);

  Status enqueue(const std::shared_ptr<TransferImpl>& transfer);  // never blocks
  void abort(const std::shared_ptr<TransferImpl>& transfer, Status why);
  void stop(const Status& why);  // aborts all, ends the lanes; enqueue() fails with `why` from now on
  // Aborts transfers whose deadline is past; returns the nearest deadline of the others, or Deadline::max().
  Deadline expire(Clock::time_point now);

  SliceShape slice_shape() const;  // how plans for this peer are cut
  PeerStats stats() const;
  std::string note() const { return selector_.note(); }

 private:
  friend class Lane;
  struct Running {  // what a lane is doing
    bool started = false;
    bool idle = false;  // waits for `wake`
    std::condition_variable wake;
    Rail* rail = nullptr;  // not null only while execute() may be running
    const TransferImpl* transfer = nullptr;
  };

  // For lanes. All take the mutex.
  bool wait_for_work(std::size_t lane, Clock::time_point not_before);  // false: stop
  bool take(std::size_t lane, Rail* rail, Slice* slice);
  void finish(std::size_t lane, Slice* slice, const Status& rail_status);
  void fail_queued(std::size_t lane, const Status& no_rail);  // unless another lane has a rail
  void set_rail_open(std::size_t lane, bool open);
  void start_lanes();

  bool has_work_locked() const { return !ready_.empty() || !retry_.empty(); }
  bool any_rail_open_locked() const;
  void start_lanes_locked();
  void wake_locked(std::size_t most);  // idle lanes that the present transport can use
  void wake_all_locked();
  void account_locked(const Slice& slice, std::string_view transport);
  bool record_results_locked(Slice* slice, const Status& rail_status);
  void forget_locked(const TransferImpl* transfer);
  bool drop_queued_locked(const std::shared_ptr<TransferImpl>& transfer, Status why);
  void settle(const std::shared_ptr<TransferImpl>& transfer);

  const std::uint64_t slice_bytes_;
  const milliseconds connect_timeout_;
  Counters& counters_;
  const Hooks hooks_;
  RailSelector selector_;

  mutable std::mutex mutex_;                         // guards what follows
  std::deque<std::shared_ptr<TransferImpl>> ready_;  // have something uncut; taken in turn
  std::deque<Slice> retry_;
  std::vector<std::shared_ptr<TransferImpl>> unsettled_;
  std::vector<Running> running_;  // by lane
  std::vector<bool> rail_open_;   // by lane
  Status stopped_;                // not OK: stop() was called
  PeerStats stats_;
};

}  // namespace kvferry
