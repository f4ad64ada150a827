#include "engine/peer.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"
#include "base/log.h"
#include "engine/core.h"

namespace kvferry {
namespace {

constexpr int kMissedPings = 3;
constexpr milliseconds kPingTimeout{50};     // the keeper serves all peers: it does not wait for one
constexpr milliseconds kReplyTimeout{5000};  // for socket space, by the control thread
constexpr milliseconds kLossPatience{200};

PeerContext context_of(const EngineCore& core, const PeerImpl::Identity& identity, PeerImpl* peer) {
  PeerContext context;
  context.self = core.local.id;
  context.node_id = identity.node_id;
  context.endpoint = identity.endpoint;
  context.shm_name = identity.shm_name;
  context.same_host = identity.same_host;
  context.rails = identity.rails;
  context.distances = core.distances;
  context.fence = [peer](std::uint32_t connection, Deadline deadline) { return peer->fence(connection, deadline); };
  context.stop = &core.stop;
  return context;
}

LanePool::Hooks hooks_of(PeerImpl* peer, EngineCore* core) {
  return {
      [peer, core](std::string name, std::function<void()> body) {
        return core->threads.spawn(std::move(name), [self = peer->shared_from_this(), core, body = std::move(body)] {
          core->place_thread();
          body();
        });
      },
      [peer](const TransferImpl& transfer) { return peer->send_message(transfer.notify(), transfer.deadline()); },
      [peer] { return peer->confirm_alive(kLossPatience); },
      [core](const std::shared_ptr<TransferImpl>& aborted) { core->keeper.watch(aborted); },
  };
}

std::vector<Transport*> reaching_devices(std::vector<Transport*> ranked) {
  std::erase_if(ranked, [](const Transport* transport) { return !transport->reaches_device_memory(); });
  return ranked;
}

}  // namespace

class PeerImpl::DeviceLanes final : public PlanTarget {
 public:
  DeviceLanes(PeerImpl* peer, const std::vector<Transport*>& transports)
      : core_(peer->core_.get()),
        lanes_(transports, device_context(peer), core_->options, core_->counters, hooks_of(peer, core_)) {}

  static std::unique_ptr<DeviceLanes> make(PeerImpl* peer) {
    const std::vector<Transport*> transports = reaching_devices(peer->core_->ranked_transports());
    return transports.empty() ? nullptr : std::make_unique<DeviceLanes>(peer, transports);
  }
  bool belongs_to(const EngineCore& core) const override { return core_ == &core; }
  LanePool& lanes() override { return lanes_; }

 private:
  static PeerContext device_context(PeerImpl* peer) {
    PeerContext context = context_of(*peer->core_, peer->identity_, peer);
    context.place_of = [table = &peer->core_->regions](const std::byte* data, std::uint64_t length) {
      return table->place_of(data, length);
    };
    return context;
  }

  EngineCore* const core_;
  LanePool lanes_;
};

PeerImpl::~PeerImpl() = default;

PeerImpl::PeerImpl(std::shared_ptr<EngineCore> core, Identity identity, Channel channel)
    : core_(std::move(core)),
      identity_(std::move(identity)),
      tls_note_(channel.tls() != nullptr ? channel.tls()->description() : ""),
      link_(std::move(channel)),
      lanes_(core_->ranked_transports(), context_of(*core_, identity_, this), core_->options, core_->counters,
             hooks_of(this, core_.get())),
      device_lanes_(DeviceLanes::make(this)),
      memory_(core_->local, context_of(*core_, identity_, this)),
      last_heard_(Clock::now().time_since_epoch().count()) {}

std::string PeerImpl::name() const {
  return "node " + identity_.node_id.to_string() + " at " + identity_.endpoint.to_string();
}

Result<std::shared_ptr<PlanTarget>> PeerImpl::device_target() {
  if (device_lanes_) return std::shared_ptr<PlanTarget>(shared_from_this(), device_lanes_.get());
  return {Code::kUnsupported, "memory of an accelerator is moved by tcp only, which transports does not allow"};
}

Deadline PeerImpl::expire(Clock::time_point now) {
  const Deadline nearest = lanes_.expire(now);
  return device_lanes_ ? sooner(nearest, device_lanes_->lanes().expire(now)) : nearest;
}

PeerStats PeerImpl::stats() const {
  PeerStats sum = lanes_.stats();
  if (device_lanes_) add_stats(device_lanes_->lanes().stats(), &sum);
  return sum;
}

std::string PeerImpl::metadata() const {
  std::lock_guard lock(mutex_);
  return metadata_;
}

std::vector<RegionInfo> PeerImpl::regions() const {
  std::lock_guard lock(mutex_);
  return regions_;
}

Status PeerImpl::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

std::string PeerImpl::transport_note() const {
  const std::string note = lanes_.note();
  return note.empty() || tls_note_.empty() ? note + tls_note_ : note + "; " + tls_note_;
}

Status PeerImpl::refresh(milliseconds timeout) {
  const Deadline deadline = deadline_in(timeout);
  std::uint64_t request = 0;
  {
    std::lock_guard lock(mutex_);
    if (!status_.ok()) return status_;
    request = ++last_request_;
  }
  KVF_RETURN_IF_ERROR(send(FrameType::kRegionsRequest, request, {}, deadline));
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline, [&] { return !status_.ok() || answered_ >= request; })) {
    return {Code::kDeadlineExceeded,
            name() + " did not send its regions within " + std::to_string(timeout.count()) + " ms"};
  }
  return answered_ >= request ? Status() : status_;
}

Status PeerImpl::wait_for_regions(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline, [&] { return !status_.ok() || regions_known_; })) {
    return {Code::kDeadlineExceeded, name() + " did not send its regions in time"};
  }
  return regions_known_ ? Status() : status_;
}

void PeerImpl::close() {
  leave("closed by the application", {Code::kCancelled, "the connection to " + name() + " was closed by this side"});
}

void PeerImpl::leave(std::string_view reason, const Status& why) {
  if (!core_->check_process().ok()) return;
  // Marked first: the peer hangs up as soon as it has heard, and that must not become the reason.
  if (!mark_lost(why)) return;
  bool broken = false;
  // Best effort: the peer also notices the end of the stream.
  (void)link_.send(FrameType::kGoodbye, 0, wire::Goodbye{std::string(reason)}.encode(), deadline_in(kPingTimeout),
                   &broken);
  settle_loss(why);
}

Status PeerImpl::send(FrameType type, std::uint64_t request_id, ByteView body, Deadline deadline) {
  KVF_RETURN_IF_ERROR(core_->check_process());
  KVF_RETURN_IF_ERROR(status());
  bool broken = false;
  const Status sent = link_.send(type, request_id, body, deadline, &broken);
  if (sent.ok()) return {};
  if (broken) lose(sent.with_context("the control connection to " + name() + " broke"));
  const Status lost = status();
  return lost.ok() ? sent.with_context("sending to " + name()) : lost;
}

Status PeerImpl::send_message(std::string_view body, Deadline deadline) {
  KVF_RETURN_IF_ERROR(send(FrameType::kMessage, 0, as_byte_view(body), deadline));
  core_->counters.add(Counters::kMessagesSent);
  return {};
}

Status PeerImpl::try_send_message(ByteView body) {
  KVF_RETURN_IF_ERROR(status());
  bool broken = false;
  const Status sent = link_.try_send(FrameType::kMessage, 0, body, &broken);
  if (broken) lose(sent.with_context("the control connection to " + name() + " broke"));
  if (sent.ok()) core_->counters.add(Counters::kMessagesSent);
  return sent;
}

Result<std::span<std::byte>> PeerImpl::map(RegionKey key, milliseconds timeout) {
  KVF_RETURN_IF_ERROR(core_->check_process());
  KVF_RETURN_IF_ERROR(status());
  auto mapped = memory_.map(key, deadline_in(timeout));
  if (!mapped.ok()) return mapped.status().with_context("mapping a region of " + name());
  return mapped;
}

void PeerImpl::lose(const Status& why) {
  if (mark_lost(why)) settle_loss(why);
}

bool PeerImpl::mark_lost(const Status& why) {
  {
    std::lock_guard lock(mutex_);
    if (!status_.ok()) return false;
    status_ = why;
  }
  changed_.notify_all();
  return true;
}

void PeerImpl::settle_loss(const Status& why) {
  link_.shut_down();
  lanes_.stop(why);
  if (device_lanes_) device_lanes_->lanes().stop(why);
  core_->forget_peer(*this);
  core_->counters.add(Counters::kPeersLost);
  const bool orderly = why.code() == Code::kCancelled || said_goodbye_;
  log_event(orderly ? LogLevel::kInfo : LogLevel::kWarning, "peer_lost",
            {{"peer", identity_.node_id.to_string()}, {"endpoint", identity_.endpoint.to_string()}, {"reason", why}});
  if (core_->hooks.on_lost) core_->hooks.on_lost(identity_.handle, why);
}

void PeerImpl::serve() {
  Status end = answer(FrameType::kRegions, 0);
  const bool shared = core_->hooks.callers_read && link_.may_be_shared();
  while (end.ok()) end = shared ? receive_shared() : receive_own();
  if (end.code() == Code::kProtocolError || end.code() == Code::kDataCorrupt) {
    core_->counters.add_dropped("malformed_control_frame");
  } else if (end.code() == Code::kUnauthenticated) {
    core_->counters.add_dropped("forged_frame");
  }
  lose(end);
  turn_.close();
  link_.close();
}

Status PeerImpl::take_frame(Result<Frame> frame) {
  if (!frame.ok()) return frame.status().with_context("control connection to " + name());
  last_heard_ = Clock::now().time_since_epoch().count();
  unanswered_pings_ = 0;
  return handle_frame(*frame);
}

// Silence is judged by the keeper; it shuts the link down.
Status PeerImpl::receive_own() { return take_frame(link_.receive(deadline_in(kLongestWait))); }

Status PeerImpl::receive_shared() {
  if (!turn_.rest()) return turn_.end();
  const Status readable = link_.wait_readable(deadline_in(kLongestWait));
  if (!readable.ok()) return readable.with_context("control connection to " + name());
  if (!turn_.take()) return {};  // a caller is reading it
  Status end;
  if (link_.has_read_ahead() || link_.wait_readable(Clock::now()).ok()) end = receive_own();
  // Nothing whole stays behind that others would not see come.
  while (end.ok() && link_.has_read_ahead() && link_.has_frame()) end = receive_own();
  turn_.give();
  return end;
}

void PeerImpl::await_message(const std::function<bool()>& done, const std::function<void()>& sleep, Deadline deadline) {
  if (!core_->hooks.callers_read || !link_.may_be_shared()) return sleep();
  const bool reads = turn_.enter();
  const Status end = reads ? read_for_caller(done, deadline) : Status();
  const bool served = done();
  if (reads) turn_.stop_reading(served, end);
  if (!served) sleep();
  turn_.leave();
}

// Leaves frames that are on their way to the control thread, which has the time to wait for the rest.
Status PeerImpl::read_for_caller(const std::function<bool()>& done, Deadline deadline) {
  for (;;) {
    // Nothing whole stays behind that others would not see come.
    while (link_.has_read_ahead() && link_.has_frame()) KVF_RETURN_IF_ERROR(receive_own());
    if (done() || !link_.wait_readable(deadline).ok() || !link_.has_frame()) return {};
    KVF_RETURN_IF_ERROR(receive_own());
  }
}

Status PeerImpl::handle_frame(Frame& frame) {
  switch (frame.header.type) {
    case FrameType::kRegionsRequest:
      return answer(FrameType::kRegions, frame.header.request_id);
    case FrameType::kRegions:
      return take_regions(frame.header.request_id, frame.body);
    case FrameType::kMessage:
      return take_message(frame);
    case FrameType::kPing:
      return answer(FrameType::kPong, frame.header.request_id);
    case FrameType::kPong:
      return {};
    case FrameType::kFence:
      return serve_fence(frame.header.request_id);
    case FrameType::kFenced: {
      const std::lock_guard lock(mutex_);
      const auto fence = fences_.find(frame.header.request_id);
      if (fence != fences_.end()) fence->second = true;  // else nobody waits any more
      changed_.notify_all();
      return {};
    }
    case FrameType::kGoodbye: {
      Result<wire::Goodbye> goodbye = wire::Goodbye::decode(frame.body);
      if (!goodbye.ok()) return goodbye.status();
      said_goodbye_ = true;
      return {Code::kPeerLost, name() + " ended the connection: " + goodbye->reason};
    }
    case FrameType::kError:
      return status_of_error_frame(frame.body);
    default:
      return {Code::kProtocolError,
              "unexpected " + std::string(frame_type_name(frame.header.type)) + " on a control connection"};
  }
}

Status PeerImpl::send_regions(std::uint64_t request_id) {
  wire::Regions body;
  body.metadata = core_->metadata();
  body.regions = core_->regions.list();
  std::erase_if(body.regions, [](const RegionInfo& region) { return region.kind == MemoryKind::kFile; });
  return send(FrameType::kRegions, request_id, body.encode(), deadline_in(kReplyTimeout));
}

// By the control thread, which does not wait: what cannot be sent at once is sent by another thread.
Status PeerImpl::answer(FrameType type, std::uint64_t request_id) {
  if (type != FrameType::kRegions) {
    const Status sent = send(type, request_id, {}, Clock::now());
    if (sent.code() != Code::kDeadlineExceeded) return sent;
  }
  switch (answers_.add({type, request_id})) {
    case Answers::Added::kYes:
      return {};
    case Answers::Added::kTooMany:
      return {Code::kResourceExhausted, name() + " asks and asks, and reads no answers"};
    case Answers::Added::kStartSender:
      break;
  }
  Status started = core_->threads.spawn("kvf-answers", [self = shared_from_this()] { self->send_answers(); });
  if (!started.ok()) answers_.abandon();
  return started;
}

void PeerImpl::send_answers() {
  while (const auto next = answers_.next()) {
    const Status sent = next->type == FrameType::kRegions
                            ? send_regions(next->request_id)
                            : send(next->type, next->request_id, {}, deadline_in(kReplyTimeout));
    if (!sent.ok()) lose(sent);  // those that are left fail at once
  }
}

Status PeerImpl::fence(std::uint32_t connection, Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (!status_.ok()) return status_;
    fences_[connection] = false;
  }
  Status status = send(FrameType::kFence, connection, {}, deadline);
  std::unique_lock lock(mutex_);
  if (status.ok()) {
    const auto ended = [&] { return fences_[connection]; };
    changed_.wait_until(lock, deadline, [&] { return ended() || !status_.ok(); });
    if (!ended())
      status = status_.ok() ? Status(Code::kDeadlineExceeded, name() + " did not confirm in time") : status_;
  }
  fences_.erase(connection);
  return status;
}

Status PeerImpl::serve_fence(std::uint64_t connection) {
  if (connection == 0 || connection > UINT32_MAX) {
    return {Code::kProtocolError, "FENCE of connection " + std::to_string(connection)};
  }
  // The serving thread leaves within a system call or two.
  const bool ended =
      core_->inbound.fence(identity_.node_id, static_cast<std::uint32_t>(connection), deadline_in(kFencePatience));
  return ended ? answer(FrameType::kFenced, connection) : Status();
}

Status PeerImpl::take_regions(std::uint64_t request_id, ByteView body) {
  Result<wire::Regions> regions = wire::Regions::decode(body);
  if (!regions.ok()) return regions.status();
  {
    std::lock_guard lock(mutex_);
    metadata_ = std::move(regions->metadata);
    regions_ = std::move(regions->regions);
    regions_known_ = true;
    if (request_id <= last_request_) answered_ = std::max(answered_, request_id);
  }
  changed_.notify_all();
  return {};
}

Status PeerImpl::take_message(Frame& frame) {
  if (core_->hooks.on_message) {
    if (auto taken = core_->hooks.on_message(identity_.handle, frame.body)) {
      core_->counters.add(Counters::kMessagesReceived);
      return *std::move(taken);
    }
  }
  const Status taken = core_->inbox.push({identity_.handle, std::string(as_text(frame.body))});
  if (!taken.ok()) {
    core_->counters.add_dropped("inbox_full");
    Status why = taken.with_context(name());
    leave("its application leaves too many messages unread", why);
    return why;
  }
  core_->counters.add(Counters::kMessagesReceived);
  return {};
}

void PeerImpl::keep_alive(Clock::time_point now) {
  const Clock::duration silent = now - Clock::time_point(Clock::duration(last_heard_.load()));
  const milliseconds probe = core_->options.idle_probe;
  // Pings are counted too: after a pause of our own process the peer must get its chance to answer.
  if (silent >= probe * kMissedPings && unanswered_pings_ >= kMissedPings - 1) {
    lose({Code::kPeerLost, name() + " did not answer for " +
                               std::to_string(std::chrono::duration_cast<milliseconds>(silent).count()) + " ms"});
    return;
  }
  const Clock::duration since_ping = now - Clock::time_point(Clock::duration(last_ping_.load()));
  if (silent < probe || since_ping < probe) return;
  last_ping_ = now.time_since_epoch().count();
  ++unanswered_pings_;
  bool broken = false;
  const Status sent = link_.send(FrameType::kPing, 0, {}, deadline_in(kPingTimeout), &broken);
  if (broken) lose(sent.with_context("the control connection to " + name() + " broke"));
}

Status PeerImpl::confirm_alive(milliseconds patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [&] { return !status_.ok(); });
  return status_;
}

}  // namespace kvferry
