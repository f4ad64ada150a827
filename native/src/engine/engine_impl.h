// The Engine behind the public interface: checks arguments, starts and ends the threads.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "engine/core.h"
#include "engine/hooked_engine.h"
#include "engine/lane_pool.h"
#include "engine/listener.h"
#include "engine/self_peer.h"
#include "kvferry/engine.h"

namespace kvferry {

class EngineImpl final : public HookedEngine {
 public:
  static Result<std::unique_ptr<EngineImpl>> start(EngineOptions options, EngineHooks hooks);
  ~EngineImpl() override { close(); }

  const NodeId& node_id() const override { return core_->local.id; }
  Endpoint endpoint() const override { return advertised_; }

  Result<RegionInfo> register_memory(void* data, std::uint64_t length, std::string name, std::uint8_t access,
                                     MemoryKind kind) override;
  Result<std::pair<RegionInfo, void*>> allocate(std::uint64_t length, std::string name, std::uint8_t access) override;
  Result<RegionInfo> open_file(const std::string& path, const FileOptions& options) override;
  Result<std::string> file_note(RegionKey key) override { return core_->files.note(key); }
  Status unregister(RegionKey key, milliseconds timeout) override;
  Status set_metadata(std::string metadata) override;

  Result<std::shared_ptr<Peer>> connect(const Endpoint& endpoint, const NodeId& expected,
                                        milliseconds timeout) override;
  std::shared_ptr<Peer> self() override { return self_; }
  Result<std::shared_ptr<const Plan>> prepare(const std::shared_ptr<Peer>& peer, std::span<const Piece> pieces,
                                              Op op) override;
  Result<std::shared_ptr<const Plan>> prepare_blocks(const std::shared_ptr<Peer>& peer, Op op,
                                                     const BlockPairs& blocks) override;
  Result<std::shared_ptr<Transfer>> submit(const std::shared_ptr<const Plan>& plan, SubmitOptions options) override;
  Result<std::shared_ptr<Transfer>> execute(const std::shared_ptr<const Plan>& plan, SubmitOptions options) override;

  Status send(std::uint64_t peer_handle, std::string_view body, milliseconds timeout) override;
  Status try_send(std::uint64_t peer_handle, ByteView body) override;
  std::optional<pid_t> process_of(std::uint64_t peer_handle) const override;
  void await_message(std::uint64_t peer_handle, const std::function<bool()>& done, const std::function<void()>& sleep,
                     Deadline deadline) override;
  std::optional<Message> next_message(milliseconds timeout) override;
  std::shared_ptr<Peer> peer(std::uint64_t handle) override;

  std::vector<std::shared_ptr<Peer>> peers() const override;
  std::map<std::string, std::uint64_t> counters() const override { return core_->counters.snapshot(); }
  void close() override;

 private:
  EngineImpl(std::shared_ptr<EngineCore> core, Listener listener);
  Status open_shm_listener();
  Status open_rail_listeners(const Endpoint& bind);
  Status make_transports();
  Status start_threads();
  Status check_open() const;
  Result<std::shared_ptr<TransferImpl>> begin(const std::shared_ptr<const Plan>& plan, SubmitOptions options,
                                              LanePool::Help help);
  Result<std::shared_ptr<PeerImpl>> adopt(Channel channel, const Endpoint& endpoint, const wire::HelloAck& ack);

  struct Destination {  // of a plan
    std::shared_ptr<PlanTarget> target;
    std::vector<RegionInfo> regions;
  };
  struct Sides {  // ids of a plan's regions
    std::vector<std::uint32_t> local, remote;
    void add(std::uint32_t ours, std::uint32_t theirs);  // runs of one id are kept once
  };
  Result<Destination> destination(const std::shared_ptr<Peer>& peer, const Sides& sides) const;
  bool on_device(const Sides& sides, const std::vector<RegionInfo>& remote) const;

  const std::shared_ptr<EngineCore> core_;
  Listener listener_;
  std::optional<Listener> shm_listener_;  // constant once the threads run
  std::vector<Listener> rail_listeners_;  // likewise
  Endpoint advertised_;                   // likewise
  std::shared_ptr<SelfPeer> self_;        // likewise

  mutable std::mutex mutex_;  // guards what follows; never held while waiting
  bool closed_ = false;
  std::map<RegionKey, std::uint32_t> arena_of_;  // regions made by allocate()
  std::mutex close_mutex_;                       // one close() at a time, later ones wait for the first
};

}  // namespace kvferry
