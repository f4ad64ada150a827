#include "store/store_counters.h"

namespace kvferry::store {
namespace {

constexpr std::array<const char*, StoreCounters::kCount> kNames = {
    "stored_total",
    "stored_bytes_total",
    "stored_there_total",
    "stored_conflicts_total",
    "reservations_aborted_total",
    "reservations_refused_total",
    "reservation_leases_ended_total",
    "pins_total",
    "pins_of_absent_total",
    "pin_leases_ended_total",
    "removed_total",
    "expired_total",
    "evicted_total",
    "evicted_bytes_total",
    "evicted_in_put_total",
    "kept_by_pins_total",
    "clients_gone_total",
    "demoted_total",
    "demoted_bytes_total",
    "demoted_remote_total",
    "ssd_hits_total",
    "ssd_hit_bytes_total",
    "ssd_written_total",
    "ssd_skipped_total",
    "ssd_evicted_total",
    "ssd_errors_total",
    "ssd_corrupt_total",
    "ssd_recovered_total",
    "quick_puts_total",
    "quick_puts_refused_total",
};

}  // namespace

std::map<std::string, std::uint64_t> StoreCounters::snapshot() const {
  std::map<std::string, std::uint64_t> all;
  for (std::size_t id = 0; id < kCount; ++id) all.emplace(kNames[id], get(static_cast<Id>(id)));
  return all;
}

}  // namespace kvferry::store
