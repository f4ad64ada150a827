#include "engine/peer_traffic.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvferry {
namespace {

std::size_t latency_bucket(double seconds, std::size_t buckets) {
  const auto us = static_cast<std::uint64_t>(std::fmax(seconds, 0.0) * 1e6);
  return std::min(static_cast<std::size_t>(std::bit_width(us)), buckets - 1);
}

}  // namespace

TransportStats& PeerTraffic::of(std::string_view transport) {
  for (TransportStats& known : by_transport_) {
    if (known.transport == transport) return known;
  }
  by_transport_.emplace_back();
  by_transport_.back().transport = transport;
  return by_transport_.back();
}

void PeerTraffic::slice_moved(std::string_view transport, Op op, std::uint64_t bytes) {
  TransportStats& stats = of(transport);
  (op == Op::kRead ? stats.bytes_read : stats.bytes_written) += bytes;
}

void PeerTraffic::slice_retried(std::string_view transport) { ++of(transport).retried_slices; }

void PeerTraffic::rail_failed(std::string_view transport) { ++of(transport).rail_failures; }

void PeerTraffic::rail_opened(std::string_view transport) { ++of(transport).rails; }

void PeerTraffic::rail_closed(std::string_view transport) { --of(transport).rails; }

void PeerTraffic::transfer_ended(const TransferImpl& transfer, const TransferImpl::Outcome& outcome) {
  const std::size_t pieces = transfer.plan().pieces();
  pieces_ += pieces;
  failed_pieces_ += outcome.failed_pieces;
  if (outcome.transport.empty()) return;
  TransportStats& stats = of(outcome.transport);
  ++stats.transfers;
  stats.pieces += pieces;
  if (outcome.failed_pieces > 0) stats.failed_pieces[outcome.status.code()] += outcome.failed_pieces;
  if (!outcome.status.ok()) return;
  ++stats.latency[latency_bucket(outcome.seconds, stats.latency.size())];
  stats.latency_sum_s += outcome.seconds;
}

PeerStats PeerTraffic::snapshot() const {
  PeerStats out;
  for (const TransportStats& stats : by_transport_) {
    out.bytes_read += stats.bytes_read;
    out.bytes_written += stats.bytes_written;
    out.retried_slices += stats.retried_slices;
  }
  out.pieces = pieces_;
  out.failed_pieces = failed_pieces_;
  out.by_transport = by_transport_;
  return out;
}

}  // namespace kvferry
