// One live control connection to another engine, and the transfers to it.
//
// Threads: the control thread runs serve() from first to last; any thread may call the public methods. Lock order: a
// peer's mutex_ before nothing (no other lock is taken under it).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/answers.h"
#include "engine/control_link.h"
#include "engine/lane_pool.h"
#include "engine/peer_memory.h"
#include "engine/plan_target.h"
#include "engine/reading_turn.h"
#include "kvferry/engine.h"
#include "wire/messages.h"

namespace kvferry {

struct EngineCore;

class PeerImpl final : public Peer, public PlanTarget, public std::enable_shared_from_this<PeerImpl> {
 public:
  struct Identity {  // learned in the handshake
    std::uint64_t handle = 0;
    NodeId node_id;
    Endpoint endpoint;  // port 0: it told none that we can reach
    std::string shm_name;
    bool same_host = false;
    std::vector<PeerRail> rails;
  };
  PeerImpl(std::shared_ptr<EngineCore> core, Identity identity, Channel channel);
  ~PeerImpl() override;

  std::uint64_t handle() const override { return identity_.handle; }
  const NodeId& node_id() const override { return identity_.node_id; }
  Endpoint endpoint() const override { return identity_.endpoint; }
  std::string metadata() const override;
  std::vector<RegionInfo> regions() const override;
  Status refresh(milliseconds timeout) override;
  bool same_host() const override { return identity_.same_host; }
  Status status() const override;
  PeerStats stats() const override;
  std::string transport_note() const override;
  Result<std::span<std::byte>> map(RegionKey key, milliseconds timeout) override;
  void close() override;

  // For the engine.
  void serve();                                // the control thread: until the peer is lost
  Status wait_for_regions(Deadline deadline);  // until the peer's first REGIONS came
  Status send(FrameType type, std::uint64_t request_id, ByteView body, Deadline deadline);
  Status send_message(std::string_view body, Deadline deadline);
  Status try_send_message(ByteView body);                           // see HookedEngine::try_send
  std::optional<pid_t> process() const { return memory_.owner(); }  // see HookedEngine::process_of
  // See HookedEngine::await_message.
  void await_message(const std::function<bool()>& done, const std::function<void()>& sleep, Deadline deadline);
  void lose(const Status& why);                            // first reason stays; settles all transfers; idempotent
  void leave(std::string_view reason, const Status& why);  // lose() of our own accord: the peer is told the reason
  void keep_alive(Clock::time_point now);                  // the keeper's tick: ping if silent, lose if silent for long
  Status confirm_alive(milliseconds patience);  // OK, or why the peer is lost, waiting a little for that to show
  // Makes the peer end a data connection of ours; OK: nothing that was sent over it will be written any more.
  Status fence(std::uint32_t connection, Deadline deadline);
  bool belongs_to(const EngineCore& core) const override { return core_.get() == &core; }
  LanePool& lanes() override { return lanes_; }
  const LanePool& lanes() const { return lanes_; }
  // Where plans go that name memory of an accelerator on either side: lanes with those transports alone that reach it.
  // kUnsupported: none of this engine does.
  Result<std::shared_ptr<PlanTarget>> device_target();
  std::string name() const;                // "node <id> at <endpoint>"
  Deadline expire(Clock::time_point now);  // the keeper's: ends transfers whose time is up; the nearest other deadline

 private:
  class DeviceLanes;
  bool mark_lost(const Status& why);  // true for the first reason only
  void settle_loss(const Status& why);
  Status receive_own();     // one frame, by the control thread
  Status receive_shared();  // the same, and maybe none, where callers may read
  Status read_for_caller(const std::function<bool()>& done, Deadline deadline);
  Status take_frame(Result<Frame> frame);
  Status send_regions(std::uint64_t request_id);
  Status answer(FrameType type, std::uint64_t request_id);
  void send_answers();
  Status serve_fence(std::uint64_t connection);
  Status handle_frame(Frame& frame);
  Status take_regions(std::uint64_t request_id, ByteView body);
  Status take_message(Frame& frame);

  const std::shared_ptr<EngineCore> core_;
  const Identity identity_;
  const std::string tls_note_;
  ControlLink link_;
  ReadingTurn turn_;
  LanePool lanes_;
  const std::unique_ptr<DeviceLanes> device_lanes_;  // null if no transport reaches device memory
  Answers answers_;
  PeerMemory memory_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // status_, regions_, answered_ or fences_ changed
  Status status_;                    // all below guarded by mutex_
  std::string metadata_;
  std::vector<RegionInfo> regions_;  // sorted by id
  bool regions_known_ = false;
  std::uint64_t last_request_ = 0;
  std::uint64_t answered_ = 0;            // the highest request that was answered
  std::map<std::uint64_t, bool> fences_;  // connections that the peer should end, and whether it did
  std::atomic<Clock::rep> last_heard_;    // ticks of Clock
  std::atomic<Clock::rep> last_ping_{0};
  std::atomic<int> unanswered_pings_{0};
  std::atomic<bool> said_goodbye_{false};
};

}  // namespace kvferry
