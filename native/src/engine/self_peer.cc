#include "engine/self_peer.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"
#include "engine/core.h"

namespace kvferry {
namespace {

// Between two slices all requests end, so slices to files are large; they wait for nobody else's rails.
constexpr std::uint64_t kFileSliceBytes = 16u << 20;

EngineOptions file_options(EngineOptions options) {
  options.slice_bytes = std::max(options.slice_bytes, kFileSliceBytes);
  return options;
}

PeerContext own_context(const EngineCore& core) {
  PeerContext context;
  context.self = core.local.id;
  context.node_id = core.local.id;
  context.same_host = true;
  return context;
}

}  // namespace

SelfLanes::SelfLanes(std::shared_ptr<EngineCore> core, Transport* transport, const EngineOptions& options)
    : core_(std::move(core)),
      transport_(transport),
      lanes_({transport}, own_context(*core_), options, core_->counters, hooks()) {}

LanePool::Hooks SelfLanes::hooks() {
  return {
      [this](const std::string&, std::function<void()> body) {
        return core_->threads.spawn("kvf-" + std::string(transport_->name()),
                                    [self = shared_from_this(), body = std::move(body)] { body(); });
      },
      [this](const TransferImpl& transfer) {
        return core_->inbox.push({SelfPeer::kHandle, transfer.notify()}).with_context("a message to ourselves");
      },
      [] { return Status(); },
      [this](const std::shared_ptr<TransferImpl>& aborted) { core_->keeper.watch(aborted); },
  };
}

SelfPeer::SelfPeer(std::shared_ptr<EngineCore> core)
    : core_(std::move(core)),
      memory_(std::make_shared<SelfLanes>(core_, core_->local_transport.get(), core_->options)),
      files_(std::make_shared<SelfLanes>(core_, core_->file_transport.get(), file_options(core_->options))) {}

const NodeId& SelfPeer::node_id() const { return core_->local.id; }

Endpoint SelfPeer::endpoint() const {
  const auto endpoint = Endpoint::parse(core_->local.endpoint);
  return endpoint.ok() ? *endpoint : Endpoint();
}

std::string SelfPeer::metadata() const { return core_->metadata(); }
std::vector<RegionInfo> SelfPeer::regions() const { return core_->regions.list(); }

Status SelfPeer::status() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

PeerStats SelfPeer::stats() const {
  PeerStats sum = memory_->lanes().stats();
  add_stats(files_->lanes().stats(), &sum);
  return sum;
}

std::string SelfPeer::transport_note() const { return "files: " + core_->files.queues().note() + "; memory: copied"; }

Result<std::span<std::byte>> SelfPeer::map(RegionKey key, milliseconds) {
  KVF_ASSIGN_OR_RETURN(const RegionTable::Pin pin, core_->regions.pin(key));
  return std::span<std::byte>(pin.data(), pin.length());
}

Result<std::shared_ptr<PlanTarget>> SelfPeer::target(std::span<const std::uint32_t> regions) const {
  std::size_t files = 0;
  for (const std::uint32_t id : regions) {
    const auto region = core_->regions.find(id);
    if (region.ok() && region->kind == MemoryKind::kFile) ++files;
  }
  if (files == 0) return std::shared_ptr<PlanTarget>(memory_);
  if (files == regions.size()) return std::shared_ptr<PlanTarget>(files_);
  return {Code::kInvalidArgument, "a plan to the own node names either files or memory as its remote side, not both"};
}

Deadline SelfPeer::expire(Clock::time_point now) {
  return sooner(memory_->lanes().expire(now), files_->lanes().expire(now));
}

void SelfPeer::stop(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = why;
  }
  memory_->lanes().stop(why);
  files_->lanes().stop(why);
}

}  // namespace kvferry
