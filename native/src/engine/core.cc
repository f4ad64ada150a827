#include "engine/core.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "base/fork_count.h"
#include "base/log.h"
#include "engine/peer.h"

namespace kvferry {

EngineCore::EngineCore(EngineOptions opts, EngineHooks callbacks, RegionDirectoryWriter region_directory,
                       Interrupt stop_everything)
    : options(std::move(opts)),
      hooks(std::move(callbacks)),
      stop(std::move(stop_everything)),
      directory(std::move(region_directory)),
      regions(&directory, options.advise_huge_pages),
      files(regions, options.io_uring),
      inbound(options.max_connections),
      process_(::getpid()),
      forks_(fork_count()),
      metadata_(options.metadata) {
  regions.set_quiesce([this](Deadline deadline) { return attachments.quiesce(deadline); });
}

Status EngineCore::check_process() const {
  if (fork_count() == forks_) return {};
  return {Code::kUnsupported,
          "the engine belongs to process " + std::to_string(process_) + ", which forked this one; make an engine here"};
}

void EngineCore::place_thread() const {
  if (placement.kind != NumaPlacement::Kind::kPreferred) return;
  const Status placed = run_on_node(placement.node);
  if (!placed.ok()) log_event(LogLevel::kWarning, "thread_not_placed", {{"reason", placed}});
}

std::string EngineCore::metadata() const {
  std::lock_guard lock(metadata_mutex_);
  return metadata_;
}

void EngineCore::set_metadata(std::string text) {
  std::lock_guard lock(metadata_mutex_);
  metadata_ = std::move(text);
}

std::vector<Transport*> EngineCore::ranked_transports() const {
  std::vector<Transport*> out;
  for (const auto& transport : transports) {
    out.push_back(transport.get());
    if (!options.allow_fallback) break;
  }
  return out;
}

void EngineCore::forget_peer(const PeerImpl& peer) {
  const NodeId node = peer.node_id();
  if (!peers.remove(peer)) return;
  // A node without a control connection has no business on data connections.
  if (!peers.has_node(node)) inbound.interrupt_node(node);
}

}  // namespace kvferry
