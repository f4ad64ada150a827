// What a node counts of its dealings with clients and other nodes. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>

namespace kvferry::store {

class NodeCounters {
 public:
  enum Id : std::uint8_t {
    kPuts,              // objects that became visible by a client's put
    kPutBytes,          // of these
    kPutsThere,         // puts of bytes that were there already
    kPutConflicts,      // puts of other bytes under a key that is there
    kPutsFailed,        // for any other reason
    kReads,             // objects sent to, or pinned for, clients and nodes that asked by message
    kReadsAbsent,       // asked for by message and not here
    kLookups,           // ids
    kAnnounced,         // objects told to their owners
    kUnannounced,       // objects made visible although no owner could be told in time; told later
    kDroppedConflicts,  // own objects dropped because the owner knew other bytes
    kDroppedRemoved,    // own objects dropped because they had been removed meanwhile
    kAskedEverywhere,   // ids for which all members were asked
    kPulled,            // objects fetched from other nodes
    kPulledBytes,       // of these
    kPullsFailed,       //
    kRepaired,          // replicas made after a death
    kHotReplicas,       // replicas asked for because of many remote reads
    kDemoted,           // objects moved to another node instead of being evicted
    kDrained,           // objects moved away by drain()
    kRemoved,           // by clients
    kSuspicions,        // of members
    kCount,
  };
  void add(Id id, std::uint64_t n = 1) { values_[id].fetch_add(n, std::memory_order_relaxed); }
  void snapshot(std::map<std::string, std::uint64_t>* out) const {
    static constexpr std::array<const char*, kCount> kNames{"puts_total",
                                                            "put_bytes_total",
                                                            "puts_there_total",
                                                            "put_conflicts_total",
                                                            "puts_failed_total",
                                                            "reads_total",
                                                            "reads_absent_total",
                                                            "lookups_total",
                                                            "announced_total",
                                                            "unannounced_total",
                                                            "dropped_conflicts_total",
                                                            "dropped_removed_total",
                                                            "asked_everywhere_total",
                                                            "pulled_total",
                                                            "pulled_bytes_total",
                                                            "pulls_failed_total",
                                                            "repaired_total",
                                                            "hot_replicas_total",
                                                            "moved_to_nodes_total",
                                                            "drained_total",
                                                            "removed_by_clients_total",
                                                            "suspicions_total"};
    for (std::size_t i = 0; i < kCount; ++i) (*out)[kNames[i]] = values_[i].load(std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<std::uint64_t>, kCount> values_{};
};

}  // namespace kvferry::store
