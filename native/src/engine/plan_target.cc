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

void add_rail(const RailStats& other, RailStats* sum) {
  sum->lanes += other.lanes;
  sum->set_aside = sum->set_aside || other.set_aside;
  sum->bytes += other.bytes;
  sum->failures += other.failures;
  sum->recoveries += other.recoveries;
  if (sum->reason.empty()) sum->reason = other.reason;
}

// Adds each entry to the one of its name, or appends it.
template <typename Entry>
void merge(const std::vector<Entry>& others, std::string Entry::*name, void (*add)(const Entry&, Entry*),
           std::vector<Entry>* sums) {
  for (const Entry& other : others) {
    const auto same = [&](const Entry& known) { return known.*name == other.*name; };
    const auto known = std::find_if(sums->begin(), sums->end(), same);
    if (known == sums->end()) {
      sums->push_back(other);
    } else {
      add(other, &*known);
    }
  }
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
  merge(other.by_transport, &TransportStats::transport, add_transport, &sum->by_transport);
  merge(other.rails, &RailStats::name, add_rail, &sum->rails);
}

}  // namespace kvferry
