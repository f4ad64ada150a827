// Which instance holds which block, asked for whole chains of block keys: the prefix index of a router or a store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvferry/block_key.h"
#include "kvferry/export.h"
#include "kvferry/status.h"

namespace kvferry::index {

using InstanceId = std::uint32_t;  // 0 to max_instances - 1, given out by the caller

struct IndexOptions {
  std::uint32_t max_instances = 64;  // 1 to 1024
  // A block that an instance stored twice must be removed twice, as engines report that keep several copies of it (or
  // hold it on several media). false: once is enough, whatever came before.
  bool count_repeats = true;
  std::size_t max_blocks = 0;  // no further blocks are taken then; 0: no limit
};

// How a chain is searched. kGallop looks at a few blocks only, and is right only if nobody holds a block without the
// ones before it (index "closed under prefixes"); otherwise it may answer too long or too short a prefix.
enum class Search : std::uint8_t { kLinear, kGallop };

// Memory: 31 to 48 bytes for each block in an index of many, whatever its history; as much again for each block that an
// instance stored more than once; and some 50 for each different set of instances that hold a block together.
//
// Thread-safe: any number of readers, and writers, one of which works at a time. Long changes are made in steps of some
// microseconds between which readers see the part that is done; a reader waits for one step at most, a writer for the
// readers that are under way.
class KVFERRY_API ChainIndex {
 public:
  explicit ChainIndex(const IndexOptions& options = {});  // limits out of range are moved into it
  ~ChainIndex();
  ChainIndex(const ChainIndex&) = delete;
  ChainIndex& operator=(const ChainIndex&) = delete;

  struct Stored {
    std::size_t added = 0;     // blocks that this instance did not hold
    std::size_t repeated = 0;  // that it held already
    std::size_t refused = 0;   // beyond max_blocks
    bool parent_held = true;   // false: the instance does not hold the parent, so an event got lost
  };
  // The events of one instance. `parent`: the block before the first of `keys`, null at the beginning of a prompt.
  // kInvalidArgument for an unknown instance.
  Result<Stored> stored(InstanceId instance, const BlockKey* parent, std::span<const BlockKey> keys);
  Result<std::size_t> removed(InstanceId instance, std::span<const BlockKey> keys);  // how many of them it held
  Result<std::size_t> cleared(InstanceId instance);  // how many it held; also for an instance that is gone

  // How many of the first keys are held, each by whomever.
  std::size_t match_prefix(std::span<const BlockKey> keys, Search search = Search::kLinear) const;
  // lengths[i]: how many of the first keys instance i holds. `lengths` has max_instances() places. Returns the longest.
  std::size_t match(std::span<const BlockKey> keys, std::span<std::uint32_t> lengths,
                    Search search = Search::kLinear) const;
  // How often `instance` holds each block: stored less removed.
  Status references(InstanceId instance, std::span<const BlockKey> keys, std::span<std::uint32_t> out) const;
  std::vector<InstanceId> holders(const BlockKey& key) const;

  struct Stats {
    std::size_t blocks = 0;         // distinct ones
    std::size_t memory_bytes = 0;   // of everything
    std::size_t repeats = 0;        // (block, instance) pairs with more than one reference
    std::vector<std::size_t> held;  // by instance
  };
  Stats stats() const;
  std::uint32_t max_instances() const;

 private:
  class [[gnu::visibility("hidden")]] Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvferry::index
