#include "engine/engine_impl.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/signal_hook.h"
#include "engine/engine_options.h"
#include "engine/local_rails.h"
#include "engine/peer.h"
#include "engine/plan.h"
#include "engine/transfer.h"
#include "transport/fault/fault_transport.h"
#include "transport/file/file_transport.h"
#include "transport/local/local_transport.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace kvferry {
namespace {

constexpr milliseconds kSettleMargin{5000};  // for what is no thread of ours to notice that a transfer's time is up
constexpr milliseconds kAskEvery{200};       // whether execute() should give up
constexpr milliseconds kCloseQuiesce{2000};  // for peers of this host that are copying when we close

// -1: they are on several, or it is not known.
int common_node(const std::vector<RegionTable::Pin>& pins) {
  if (pins.empty()) return -1;
  const int node = pins.front().numa_node();
  const bool same = std::all_of(pins.begin(), pins.end(), [&](const auto& pin) { return pin.numa_node() == node; });
  return same ? node : -1;
}

std::unique_ptr<Transport> with_faults(std::unique_ptr<Transport> transport, const std::vector<FaultRule>& faults) {
  if (faults.empty()) return transport;
  return std::make_unique<FaultTransport>(std::move(transport), faults);
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(EngineOptions options) {
  auto engine = EngineImpl::start(std::move(options), {});
  if (!engine.ok()) return engine.status();
  return std::unique_ptr<Engine>(std::move(engine).value());
}

Result<std::unique_ptr<HookedEngine>> HookedEngine::create(EngineOptions options, EngineHooks hooks) {
  auto engine = EngineImpl::start(std::move(options), std::move(hooks));
  if (!engine.ok()) return engine.status();
  return std::unique_ptr<HookedEngine>(std::move(engine).value());
}

EngineImpl::EngineImpl(std::shared_ptr<EngineCore> core, Listener listener)
    : core_(std::move(core)), listener_(std::move(listener)) {}

Result<std::unique_ptr<EngineImpl>> EngineImpl::start(EngineOptions options, EngineHooks hooks) {
  KVF_RETURN_IF_ERROR(check_options(options));
  KVF_ASSIGN_OR_RETURN(const Endpoint bind, bind_endpoint(options));
  const NodeId id = NodeId::random();
  KVF_ASSIGN_OR_RETURN(RegionDirectoryWriter directory, RegionDirectoryWriter::create(id));
  KVF_ASSIGN_OR_RETURN(Interrupt stop, Interrupt::create());
  KVF_ASSIGN_OR_RETURN(Listener listener, Listener::open(bind));
  const auto core =
      std::make_shared<EngineCore>(std::move(options), std::move(hooks), std::move(directory), std::move(stop));
  KVF_ASSIGN_OR_RETURN(core->placement,
                       numa_placement(core->options.numa_aware, core->options.preferred_numa_node, numa_nodes()));
  if (core->options.numa_aware && numa_nodes().size() > 1) {
    core->regions.set_node_of([](const void* data, std::uint64_t length) { return numa_node_of(data, length); });
  }
  core->local.id = id;
  core->local.host = HostId::current();
  core->local.secret = core->options.cluster_secret;
  KVF_ASSIGN_OR_RETURN(core->local.tls, tls_context(core->options));

  std::unique_ptr<EngineImpl> engine(new EngineImpl(core, std::move(listener)));
  KVF_ASSIGN_OR_RETURN(engine->advertised_, advertised_endpoint(core->options, engine->listener_.endpoint()));
  core->local.endpoint = engine->advertised_.to_string();
  KVF_RETURN_IF_ERROR(engine->open_shm_listener());
  KVF_RETURN_IF_ERROR(engine->open_rail_listeners(bind));
  KVF_RETURN_IF_ERROR(engine->make_transports());
  engine->self_ = std::make_shared<SelfPeer>(core);
  core->self = engine->self_;
  KVF_RETURN_IF_ERROR(engine->start_threads());
  log_event(LogLevel::kInfo, "engine_started",
            {{"node", id.to_string()}, {"endpoint", core->local.endpoint}, {"shm", core->local.shm_name}});
  return engine;
}

// Peers of this host may attach whichever transports we use ourselves, but only if shm is among them.
Status EngineImpl::open_shm_listener() {
  const auto& names = core_->options.transports;
  if (std::find(names.begin(), names.end(), "shm") == names.end()) return {};
  const std::string name = shm_name_of(core_->local.id);
  KVF_ASSIGN_OR_RETURN(const Endpoint endpoint, Endpoint::parse(name));
  KVF_ASSIGN_OR_RETURN(Listener listener, Listener::open(endpoint));
  shm_listener_.emplace(std::move(listener));
  core_->local.shm_name = name;
  return {};
}

// Each rail's address is listened on, unless the main listener serves it already.
Status EngineImpl::open_rail_listeners(const Endpoint& bind) {
  const EngineOptions& options = core_->options;
  if (options.rails.empty() && options.device.empty()) return {};
  const Topology machine = discover_topology();
  KVF_ASSIGN_OR_RETURN(core_->local.rails, local_rails(options, bind, machine));
  core_->distances = NumaDistances(machine);
  for (LocalRail& rail : core_->local.rails) {
    const bool any = bind.is_wildcard() && (bind.family() == rail.endpoint.family() || bind.host() == "::");
    if (any || bind.host() == rail.endpoint.host()) {
      rail.endpoint = rail.endpoint.with_port(listener_.endpoint().port());
      continue;
    }
    KVF_ASSIGN_OR_RETURN(Listener listener, Listener::open(rail.endpoint));
    rail.endpoint = listener.endpoint();
    rail_listeners_.push_back(std::move(listener));
  }
  return {};
}

Status EngineImpl::make_transports() {
  KVF_ASSIGN_OR_RETURN(const std::vector<FaultRule> faults, parse_fault_plan(core_->options.fault_plan));
  for (const std::string& name : core_->options.transports) {
    std::unique_ptr<Transport> transport;
    if (name == "tcp") {
      transport = std::make_unique<TcpTransport>(
          core_->local, TcpOptions{core_->options.tcp_streams, core_->options.checksum, core_->options.link_timeout});
    } else {
      transport = std::make_unique<ShmTransport>(core_->local, core_->options.shm_lanes);
    }
    const Status possible = transport->probe();
    if (!possible.ok()) {
      if (!core_->options.allow_fallback) return possible.with_context("transport " + name + " was asked for");
      log_event(LogLevel::kWarning, "transport_not_possible", {{"transport", name}, {"reason", possible}});
    }
    core_->transports.push_back(with_faults(std::move(transport), faults));
  }
  core_->local_transport = with_faults(std::make_unique<LocalTransport>(core_->regions), faults);
  core_->file_transport =
      with_faults(std::make_unique<FileTransport>(core_->files.queues(), core_->regions, core_->files.table()), faults);
  return {};
}

Status EngineImpl::start_threads() {
  KVF_RETURN_IF_ERROR(core_->threads.spawn("kvf-keeper", [core = core_] { core->keeper.run(*core); }));
  KVF_RETURN_IF_ERROR(core_->threads.spawn("kvf-accept", [this] { listener_.run(core_, core_->stop); }));
  for (const Listener& rail : rail_listeners_) {
    KVF_RETURN_IF_ERROR(core_->threads.spawn("kvf-accept-rail", [this, &rail] { rail.run(core_, core_->stop); }));
  }
  if (!shm_listener_) return {};
  return core_->threads.spawn("kvf-accept-shm", [this] { shm_listener_->run(core_, core_->stop); });
}

Status EngineImpl::check_open() const {
  KVF_RETURN_IF_ERROR(core_->check_process());
  const std::lock_guard lock(mutex_);
  return closed_ ? Status(Code::kCancelled, "the engine is closed") : Status();
}

Result<RegionInfo> EngineImpl::register_memory(void* data, std::uint64_t length, std::string name, std::uint8_t access,
                                               MemoryKind kind) {
  KVF_RETURN_IF_ERROR(check_open());
  const std::vector<Transport*> ways = core_->ranked_transports();
  const auto reaches = [](const Transport* transport) { return transport->reaches_device_memory(); };
  if (is_device_kind(kind) && std::none_of(ways.begin(), ways.end(), reaches)) {
    return {Code::kUnsupported, "region '" + name + "': memory of kind '" + std::string(memory_kind_name(kind)) +
                                    "' is moved by tcp only: add it to transports"};
  }
  return core_->regions.add({data, length, std::move(name), access, kind, 0, 0});
}

Result<std::pair<RegionInfo, void*>> EngineImpl::allocate(std::uint64_t length, std::string name, std::uint8_t access) {
  KVF_RETURN_IF_ERROR(check_open());
  KVF_ASSIGN_OR_RETURN(Arena arena, Arena::create(length, name, {core_->options.advise_huge_pages, core_->placement}));
  log_event(LogLevel::kInfo, "arena_allocated",
            {{"name", name}, {"bytes", arena.length()}, {"page_bytes", arena.page_bytes()}});
  KVF_ASSIGN_OR_RETURN(const auto placed, core_->arenas.add(std::move(arena), (access & kRemoteWrite) != 0));
  const auto [index, data] = placed;
  auto region = core_->regions.add({data, length, std::move(name), access, MemoryKind::kHost, index, 0});
  if (!region.ok()) {
    core_->arenas.remove(index);
    return region.status();
  }
  const std::lock_guard lock(mutex_);
  arena_of_[region->key] = index;
  return std::pair<RegionInfo, void*>(*region, data);
}

Result<RegionInfo> EngineImpl::open_file(const std::string& path, const FileOptions& options) {
  KVF_RETURN_IF_ERROR(check_open());
  return core_->files.open(path, options);
}

Status EngineImpl::unregister(RegionKey key, milliseconds timeout) {
  KVF_RETURN_IF_ERROR(core_->check_process());
  KVF_RETURN_IF_ERROR(core_->regions.remove(key, deadline_in(timeout)));
  if (const auto left = core_->regions.find(key.id); left.ok() && left->key == key) return {};  // registered twice
  core_->files.forget(key);
  const std::lock_guard lock(mutex_);
  const auto arena = arena_of_.find(key);
  if (arena == arena_of_.end()) return {};
  core_->arenas.remove(arena->second);
  arena_of_.erase(arena);
  return {};
}

Status EngineImpl::set_metadata(std::string metadata) {
  if (metadata.size() > kMaxMetadataBytes) {
    return {Code::kInvalidArgument, "metadata has " + std::to_string(metadata.size()) + " bytes; at most " +
                                        std::to_string(kMaxMetadataBytes) + " are allowed"};
  }
  core_->set_metadata(std::move(metadata));
  return {};
}

Result<std::shared_ptr<Peer>> EngineImpl::connect(const Endpoint& endpoint, const NodeId& expected,
                                                  milliseconds timeout) {
  KVF_RETURN_IF_ERROR(check_open());
  const Deadline deadline = deadline_in(timeout);
  const Wait wait{deadline, &core_->stop};
  KVF_ASSIGN_OR_RETURN(UniqueFd fd, connect_to(endpoint, wait));
  Channel channel(std::move(fd));
  const auto ack = greet(channel, core_->local, expected, wire::Purpose::kControl, wait);
  if (!ack.ok()) return ack.status().with_context("handshake with " + endpoint.to_string());
  if (core_->local.secret.empty() && endpoint.is_loopback()) KVF_RETURN_IF_ERROR(check_same_user(channel.fd()));
  KVF_ASSIGN_OR_RETURN(const std::shared_ptr<PeerImpl> peer, adopt(std::move(channel), endpoint, *ack));
  const Status known = peer->wait_for_regions(deadline);
  if (known.ok()) return std::shared_ptr<Peer>(peer);
  peer->lose(known);
  return known;
}

Result<std::shared_ptr<PeerImpl>> EngineImpl::adopt(Channel channel, const Endpoint& endpoint,
                                                    const wire::HelloAck& ack) {
  PeerImpl::Identity identity;
  identity.handle = core_->peers.next_handle();
  identity.node_id = ack.self;
  identity.endpoint = endpoint;
  if (endpoint.family() == Endpoint::Family::kUnix) {
    KVF_ASSIGN_OR_RETURN(identity.endpoint, Endpoint::parse(ack.endpoint));
  }
  identity.shm_name = ack.shm_name;
  identity.same_host = core_->local.host.same_host(ack.host);
  identity.rails = usable_rails(ack.rails, channel.fd());
  auto peer = std::make_shared<PeerImpl>(core_, std::move(identity), std::move(channel));
  if (!core_->peers.add(peer)) return {Code::kCancelled, "the engine is closed"};
  core_->counters.add(Counters::kPeersConnected);
  const Status started = core_->threads.spawn("kvf-control", [peer] { peer->serve(); });
  if (started.ok()) return peer;
  peer->lose(started);
  return started;
}

void EngineImpl::Sides::add(std::uint32_t ours, std::uint32_t theirs) {
  if (local.empty() || local.back() != ours) local.push_back(ours);
  if (remote.empty() || remote.back() != theirs) remote.push_back(theirs);
}

// Whether a side of the plan is an accelerator's memory. Ids that do not exist are for the plan to complain of.
bool EngineImpl::on_device(const Sides& sides, const std::vector<RegionInfo>& remote) const {
  const auto is_device = [](const RegionInfo& region) { return is_device_kind(region.kind); };
  if (core_->regions.has_device_memory()) {
    for (const std::uint32_t id : sides.local) {
      const auto region = core_->regions.find(id);
      if (region.ok() && is_device(*region)) return true;
    }
  }
  if (std::none_of(remote.begin(), remote.end(), is_device)) return false;
  return std::any_of(remote.begin(), remote.end(), [&](const RegionInfo& region) {
    const auto named = std::find(sides.remote.begin(), sides.remote.end(), region.key.id);
    return is_device(region) && named != sides.remote.end();
  });
}

Result<EngineImpl::Destination> EngineImpl::destination(const std::shared_ptr<Peer>& peer, const Sides& sides) const {
  KVF_RETURN_IF_ERROR(check_open());
  Destination found;
  found.regions = peer ? peer->regions() : std::vector<RegionInfo>();
  const bool device = on_device(sides, found.regions);
  const auto self = std::dynamic_pointer_cast<SelfPeer>(peer);
  const auto other = std::dynamic_pointer_cast<PeerImpl>(peer);
  if (self && self->belongs_to(*core_)) {
    if (device) return {Code::kUnsupported, "a node moves memory of its own accelerators by the vendor's library"};
    KVF_ASSIGN_OR_RETURN(found.target, self->target(sides.remote));
  } else if (!other || !other->belongs_to(*core_)) {
    return {Code::kInvalidArgument, "prepare needs a peer of this engine"};
  } else if (device) {
    KVF_ASSIGN_OR_RETURN(found.target, other->device_target());
  } else {
    found.target = other;
  }
  KVF_RETURN_IF_ERROR(peer->status());
  return found;
}

Result<std::shared_ptr<const Plan>> EngineImpl::prepare(const std::shared_ptr<Peer>& peer,
                                                        std::span<const Piece> pieces, Op op) {
  Sides sides;
  for (const Piece& piece : pieces) sides.add(piece.local_region, piece.remote_region);
  KVF_ASSIGN_OR_RETURN(const Destination to, destination(peer, sides));
  auto plan = PlanImpl::build({to.target, core_->regions, to.regions, to.target->lanes().slice_shape()}, pieces, op);
  if (!plan.ok()) return plan.status();
  return std::shared_ptr<const Plan>(std::move(plan).value());
}

Result<std::shared_ptr<const Plan>> EngineImpl::prepare_blocks(const std::shared_ptr<Peer>& peer, Op op,
                                                               const BlockPairs& blocks) {
  Sides sides;
  for (const BlockList& list : blocks.local) sides.local.push_back(list.region);
  for (const BlockList& list : blocks.remote) sides.remote.push_back(list.region);
  KVF_ASSIGN_OR_RETURN(const Destination to, destination(peer, sides));
  const PlanImpl::Target target{to.target, core_->regions, to.regions, to.target->lanes().slice_shape()};
  auto plan = PlanImpl::build_blocks(target, blocks, op);
  if (!plan.ok()) return plan.status();
  return std::shared_ptr<const Plan>(std::move(plan).value());
}

Result<std::shared_ptr<TransferImpl>> EngineImpl::begin(const std::shared_ptr<const Plan>& plan, SubmitOptions options,
                                                        LanePool::Help help) {
  const Clock::time_point started = Clock::now();
  KVF_RETURN_IF_ERROR(check_open());
  TransferImpl::Order order;
  order.plan = std::dynamic_pointer_cast<const PlanImpl>(plan);
  // Its regions are named by id: with another engine's plan these would be other memory.
  if (!order.plan || !order.plan->peer()->belongs_to(*core_)) {
    return {Code::kInvalidArgument, "submit needs a plan of this engine"};
  }
  if (options.notify.size() > kMaxMessageBytes) {
    return {Code::kInvalidArgument, "a notify message has at most " + std::to_string(kMaxMessageBytes) + " bytes"};
  }
  order.pins.reserve(order.plan->local_regions().size());
  for (const RegionKey key : order.plan->local_regions()) {
    KVF_ASSIGN_OR_RETURN(RegionTable::Pin pin, core_->regions.pin(key));
    order.pins.push_back(std::move(pin));
  }
  order.numa_node = common_node(order.pins);
  order.started = started;
  order.deadline = deadline_after(started, options.timeout.value_or(core_->options.transfer_timeout));
  order.notify = std::move(options.notify);
  order.priority = options.priority;
  auto transfer = std::make_shared<TransferImpl>(std::move(order));
  std::optional<SignalHook> hook;
  if (options.give_up) {
    hook.emplace([&] {
      if (options.give_up()) transfer->cancel();
    });
  }
  KVF_RETURN_IF_ERROR(transfer->plan().peer()->lanes().enqueue(transfer, help));
  core_->counters.add(Counters::kTransfersSubmitted);
  if (!transfer->settled()) core_->keeper.expect(transfer->deadline());
  return transfer;
}

Result<std::shared_ptr<Transfer>> EngineImpl::submit(const std::shared_ptr<const Plan>& plan, SubmitOptions options) {
  options.give_up = nullptr;
  KVF_ASSIGN_OR_RETURN(auto transfer, begin(plan, std::move(options), LanePool::Help::kCopy));
  return std::shared_ptr<Transfer>(std::move(transfer));
}

Result<std::shared_ptr<Transfer>> EngineImpl::execute(const std::shared_ptr<const Plan>& plan, SubmitOptions options) {
  const auto give_up = options.give_up;
  KVF_ASSIGN_OR_RETURN(auto transfer, begin(plan, std::move(options), LanePool::Help::kMove));
  // It settles by itself, at the latest soon after its deadline; a disk's may not.
  const Deadline latest = deadline_after(transfer->deadline(), kSettleMargin);
  while (!transfer->wait(kAskEvery)) {
    if (expired(latest) && transfer->plan().peer()->lanes().cut(transfer) == LanePool::Cut::kNever) {
      return {Code::kDeadlineExceeded,
              "the time allowed for the transfer ran out, and the disk that moves it does not give back its memory: "
              "the transfer stays under way, and its regions in use, until that does"};
    }
    if (give_up && give_up()) transfer->cancel();
  }
  return std::shared_ptr<Transfer>(std::move(transfer));
}

Status EngineImpl::send(std::uint64_t peer_handle, std::string_view body, milliseconds timeout) {
  if (body.size() > kMaxMessageBytes) {
    return {Code::kInvalidArgument, "a message has at most " + std::to_string(kMaxMessageBytes) + " bytes"};
  }
  KVF_RETURN_IF_ERROR(core_->check_process());
  if (peer_handle == SelfPeer::kHandle) {
    return core_->inbox.push({peer_handle, std::string(body)}).with_context("a message to ourselves");
  }
  const auto peer = core_->peers.find(peer_handle);
  if (!peer) return core_->peers.missing(peer_handle);
  return peer->send_message(body, deadline_in(timeout));
}

Status EngineImpl::try_send(std::uint64_t peer_handle, ByteView body) {
  KVF_RETURN_IF_ERROR(core_->check_process());
  const auto peer = core_->peers.find(peer_handle);
  if (!peer) return core_->peers.missing(peer_handle);
  return peer->try_send_message(body);
}

void EngineImpl::await_message(std::uint64_t peer_handle, const std::function<bool()>& done,
                               const std::function<void()>& sleep, Deadline deadline) {
  const auto peer = core_->check_process().ok() ? core_->peers.find(peer_handle) : nullptr;
  if (!peer) return sleep();  // it is lost, which whoever waits has been told
  peer->await_message(done, sleep, deadline);
}

std::optional<pid_t> EngineImpl::process_of(std::uint64_t peer_handle) const {
  const auto peer = core_->peers.find(peer_handle);
  return peer ? peer->process() : std::nullopt;
}

std::optional<Message> EngineImpl::next_message(milliseconds timeout) {
  if (!core_->check_process().ok()) return std::nullopt;
  return core_->inbox.pop(timeout);
}

std::shared_ptr<Peer> EngineImpl::peer(std::uint64_t handle) {
  if (handle == SelfPeer::kHandle) return self_;
  return core_->peers.find(handle);
}

std::vector<std::shared_ptr<Peer>> EngineImpl::peers() const {
  const auto all = core_->peers.list();
  return {all.begin(), all.end()};
}

void EngineImpl::close() {
  if (!core_->check_process().ok()) return;  // nothing here is ours: the threads keep the core alive, so it just stays
  const std::lock_guard closing(close_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
  }
  core_->stop.set();
  for (const auto& peer : core_->peers.close()) {
    peer->leave("the engine was closed", {Code::kCancelled, "the engine was closed"});
  }
  if (self_) self_->stop({Code::kCancelled, "the engine was closed"});
  core_->keeper.stop();
  core_->inbox.close();
  // Same-host peers copy on their own: hide the memory from them, then wait for copies that are under way. Regions
  // that a serving thread still holds need no wait: those threads are joined below.
  core_->regions.hide_all();
  const Status quiet = core_->attachments.quiesce(deadline_in(kCloseQuiesce));
  if (!quiet.ok()) log_event(LogLevel::kError, "close_with_peers_copying", {{"reason", quiet}});
  core_->attachments.close();
  core_->inbound.close();
  core_->threads.join_all();
  core_->files.close_all();
  listener_.close();
  for (Listener& rail : rail_listeners_) rail.close();
  if (shm_listener_) shm_listener_->close();
}

}  // namespace kvferry
