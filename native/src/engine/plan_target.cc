#include "engine/plan_target.h"

#include <algorithm>

namespace kvferry {
namespace {

void add_transport(const TransportStats& other, TransportStats* sum) {
  sum->bytes_read += other.bytes_read;
  sum->bytes_written += other.bytes_written;
  sum->transfers += other.transfers;
  sum->pieces += other.pieces;
  for (const auto& [code, pieces] : other.failed_pieces) sum->failed_pieces[code] += pieces;
  sum->rail_failures += other.rail_failures;
  sum->retried_slices += other.retried_slices;
  sum->rails += other.rails;
  for (std::size_t i = 0; i < sum->latency.size(); ++i) sum->latency[i] += other.latency[i];
  sum->latency_sum_s += other.latency_sum_s;
}

}  // namespace

void add_stats(const PeerStats& other, PeerStats* sum) {
  if (sum->transport != other.transport) {
    if (!sum->transport.empty() && !other.transport.empty()) sum->transport += "+";
    sum->transport += other.transport;
  }
  sum->bytes_read += other.bytes_read;
  sum->bytes_written += other.bytes_written;
  sum->pieces += other.pieces;
  sum->failed_pieces += other.failed_pieces;
  sum->retried_slices += other.retried_slices;
  sum->rail_switches += other.rail_switches;
  sum->unsettled_transfers += other.unsettled_transfers;
  sum->queued_slices += other.queued_slices;
  for (const TransportStats& entry : other.by_transport) {
    const auto same = [&](const TransportStats& known) { return known.transport == entry.transport; };
    const auto known = std::find_if(sum->by_transport.begin(), sum->by_transport.end(), same);
    if (known == sum->by_transport.end()) {
      sum->by_transport.push_back(entry);
    } else {
      add_transport(entry, &*known);
    }
  }
}

}  // namespace kvferry
