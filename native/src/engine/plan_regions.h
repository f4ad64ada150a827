// The two sides' regions as a plan's pieces name them, by id; and what is said of pieces that do not fit them. Used by
// one thread. Errors name the piece: `unit` ("piece", "block list") and its index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kvferry/status.h"
#include "kvferry/types.h"
#include "memory/region_table.h"

namespace kvferry {

class PlanRegions {
 public:
  struct Local {
    RegionInfo info;
    std::byte* data =
        nullptr;  // where a region of this generation lies never changes, so it holds whenever it is pinned
  };
  // `remote` is sorted by id and outlives this, as does `local`.
  PlanRegions(std::string_view unit, const RegionTable& local, const std::vector<RegionInfo>& remote, Op op)
      : unit_(unit), table_(local), remote_(remote), op_(op) {}

  // Null if unknown. Consecutive pieces mostly name the same region, so the last one is looked at first. The pointer
  // holds until the next call.
  const Local* local(std::uint32_t id);
  const RegionInfo* remote(std::uint32_t id);

  // kNotFound or kPermissionDenied if the regions found for a piece do not do.
  Status check(std::size_t index, std::uint32_t local_id, const Local* local, std::uint32_t remote_id,
               const RegionInfo* remote) const;
  Status out_of_range(std::size_t index, std::string_view side, const RegionInfo& region, std::uint64_t offset,
                      std::uint64_t length) const;

 private:
  std::string text(std::size_t index, std::uint32_t region, std::string_view side) const;

  const std::string_view unit_;
  const RegionTable& table_;
  const std::vector<RegionInfo>& remote_;
  const Op op_;
  std::vector<Local> known_;
  std::size_t last_local_ = 0;
  const RegionInfo* last_remote_ = nullptr;
};

}  // namespace kvferry
