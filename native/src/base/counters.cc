#include "base/counters.h"

namespace kvferry {
namespace {

constexpr std::array<const char*, Counters::kCount> kNames{
    "read_bytes",
    "written_bytes",
    "shm_bytes",
    "tcp_bytes",
    "file_bytes",
    "local_bytes",
    "served_read_bytes",
    "served_written_bytes",
    "transfers_total",
    "failed_transfers_total",
    "pieces_total",
    "failed_pieces_total",
    "retried_slices_total",
    "opened_rails_total",
    "rail_failures_total",
    "rail_recoveries_total",
    "rail_switches_total",
    "connected_peers_total",
    "lost_peers_total",
    "accepted_connections_total",
    "dropped_connections_total",
    "sent_messages_total",
    "received_messages_total",
};

}  // namespace

Counters::Id Counters::bytes_by(std::string_view transport) {
  if (transport == "shm") return kShmBytes;
  if (transport == "file") return kFileBytes;
  return transport == "local" ? kLocalBytes : kTcpBytes;
}

void Counters::add_failed_pieces(Code code, std::uint64_t n) {
  add(kFailedPieces, n);
  failed_by_code_[static_cast<std::size_t>(code) % failed_by_code_.size()].fetch_add(n, std::memory_order_relaxed);
}

void Counters::add_dropped(std::string_view reason) {
  add(kConnectionsDropped);
  std::lock_guard lock(mutex_);
  auto it = dropped_.find(reason);
  if (it == dropped_.end()) it = dropped_.emplace(std::string(reason), 0).first;
  ++it->second;
}

std::map<std::string, std::uint64_t> Counters::snapshot() const {
  std::map<std::string, std::uint64_t> out;
  for (std::size_t i = 0; i < kCount; ++i) out.emplace(kNames[i], fixed_[i].load(std::memory_order_relaxed));
  for (std::size_t i = 0; i < failed_by_code_.size(); ++i) {
    const std::uint64_t n = failed_by_code_[i].load(std::memory_order_relaxed);
    if (n != 0) out.emplace("failed_pieces_" + std::string(code_name(static_cast<Code>(i))) + "_total", n);
  }
  std::lock_guard lock(mutex_);
  for (const auto& [reason, n] : dropped_) out.emplace("dropped_connections_" + reason + "_total", n);
  return out;
}

}  // namespace kvferry
