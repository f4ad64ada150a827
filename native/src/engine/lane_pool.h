// The transfers of one peer and the lanes (one rail each, with a thread) that move them. Thread-safe.
//
// A lane whose rail broke hands the rest of its slice back, for the next free lane. While nothing is queued, the thread
// that submits a transfer may borrow an idle lane and move the data itself, so that no other thread need wake up.
//
// While large transfers are under way there is a spare lane, which moves nothing but small ones: otherwise these would
// wait until a lane has moved its slice, and what is in its socket. It is lent like the others.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/counters.h"
#include "engine/lane.h"
#include "engine/peer_traffic.h"
#include "engine/rail_selector.h"
#include "engine/slice.h"
#include "engine/transfer_queue.h"

namespace kvferry {

class LanePool {
 public:
  struct Hooks {
    // Starts a thread that keeps this pool alive. The pool's mutex is held during the call.
    std::function<Status(std::string name, std::function<void()> body)> spawn;
    // Sends the transfer's notify message; called without locks, before the transfer settles.
    std::function<Status(const TransferImpl&)> notify;
    // Called by a lane that found no way to the peer: why the peer is lost, or OK if it seems alive. May wait a little.
    std::function<Status()> liveness;
    // Has cut() called later on, until it need not be. The pool's mutex is held during the call.
    std::function<void(const std::shared_ptr<TransferImpl>& aborted)> watch;
  };
  LanePool(std::vector<Transport*> ranked, PeerContext peer, const EngineOptions& options, Counters& counters,
           Hooks hooks);

  enum class Help : std::uint8_t {
    kCopy,  // the caller may copy a small transfer itself, but waits for nobody
    kMove,  // the caller moves what it can, and waits for the peer as a lane does
  };
  Status enqueue(const std::shared_ptr<TransferImpl>& transfer, Help help);
  void abort(const std::shared_ptr<TransferImpl>& transfer, Status why);
  // Ends an aborted transfer whose lanes did not come back in time: from here on they find its memory shut. What they
  // had of it failed, and of writes may still land over there.
  enum class Cut : std::uint8_t {
    kDone,   // settled, or about to be
    kLater,  // one of them touches the memory just now
    kNever,  // what moves it cannot be shut out (a disk): wait until it ends
  };
  Cut cut(const std::shared_ptr<TransferImpl>& transfer);
  void stop(const Status& why);  // aborts all, ends the lanes; enqueue() fails with `why` from now on
  // Aborts transfers whose deadline is past; returns the nearest deadline of the others, or Deadline::max().
  Deadline expire(Clock::time_point now);

  SliceShape slice_shape() const;  // how plans for this peer are cut
  PeerStats stats() const;
  std::string note() const { return selector_.note(); }

 private:
  friend class Lane;
  struct Post {  // a lane and who uses it
    Post(LanePool& pool, std::size_t index, bool is_spare) : lane(pool, index), spare(is_spare) {}
    Lane lane;
    const bool spare;
    bool started = false;
    bool idle = false;  // its thread waits for `wake` and nobody uses it
    bool lent = false;  // its thread waits for `wake`, another one uses it
    bool open = false;  // has a rail
    std::condition_variable wake;
    Rail* rail = nullptr;  // not null only while execute() may be running
    const TransferImpl* transfer = nullptr;
  };
  static constexpr std::size_t kNoLane = ~std::size_t{0};
  using Settled = std::vector<std::shared_ptr<TransferImpl>>;  // drained, to be settled without the mutex

  // For lanes. All take the mutex.
  bool wait_for_work(std::size_t lane, Clock::time_point not_before);  // false: stop
  bool take(std::size_t lane);                                         // into the lane's slice
  // Of the lane's slice. Not OK: as execute() says it, or the rail was not even asked (then it did not break).
  void finish(std::size_t lane, const Status& outcome, bool rail_broke);
  void fail_queued(std::size_t lane, const Status& no_rail);  // unless another lane has a rail
  void rail_opened(std::size_t lane);
  void rail_closed(std::size_t lane);

  // Lending.
  std::size_t lendable_locked(const TransferImpl& transfer, Help help) const;
  // Among the first `lanes` the fitting one whose path begins nearest to the NUMA node; kNoLane.
  template <typename Fits>
  std::size_t nearest_locked(std::size_t lanes, int node, const Fits& fits) const;
  void drive(std::size_t lane, const std::shared_ptr<TransferImpl>& transfer);
  bool take_more(std::size_t lane, const TransferImpl* transfer);
  void give_back(std::size_t lane);

  void take_locked(Post* post, Clock::time_point now);
  bool any_rail_open_locked() const;  // that moves transfers of any size
  bool has_work_locked(std::size_t lane) const;
  void start_lane_locked(std::size_t lane);
  void start_lanes_locked();
  void ready_spare_locked();  // if it is wanted: its thread runs and opens a rail
  // Idle lanes that the present transport can use, those near to the NUMA node first. Returns how many are missing.
  std::size_t wake_locked(std::size_t most, int node = -1);
  void forget_locked(const TransferImpl& transfer);
  static void fail_slice_locked(const Slice& slice);
  bool record_results_locked(Slice* slice, const Status& rail_status);
  bool drop_queued_locked(const std::shared_ptr<TransferImpl>& transfer, Status why);
  Settled drop_all_locked(const Status& why);
  void settle(const std::shared_ptr<TransferImpl>& transfer);
  void settle_all(const Settled& transfers);

  const std::uint64_t slice_bytes_;
  const std::uint64_t min_slice_bytes_;
  const milliseconds connect_timeout_;
  Counters& counters_;
  const Hooks hooks_;
  RailSelector selector_;

  mutable std::mutex mutex_;  // guards what follows
  TransferQueue queue_;       // what no rail has taken yet
  std::vector<std::shared_ptr<TransferImpl>> unsettled_;
  std::size_t large_unsettled_ = 0;           // of them, those that are not small
  std::vector<std::unique_ptr<Post>> posts_;  // by lane; the last is the spare one's
  Status stopped_;                            // not OK: stop() was called
  PeerTraffic traffic_;
};

}  // namespace kvferry
