#include "engine/plan_regions.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvferry {

const PlanRegions::Local* PlanRegions::local(std::uint32_t id) {
  if (last_local_ < known_.size() && known_[last_local_].info.key.id == id) return &known_[last_local_];
  for (last_local_ = 0; last_local_ < known_.size(); ++last_local_) {
    if (known_[last_local_].info.key.id == id) return &known_[last_local_];
  }
  Result<RegionInfo> found = table_.find(id);
  if (!found.ok()) return nullptr;
  const Result<RegionTable::Pin> pin = table_.pin(found->key);
  if (!pin.ok()) return nullptr;
  known_.push_back({*std::move(found), pin->data()});
  return &known_.back();
}

const RegionInfo* PlanRegions::remote(std::uint32_t id) {
  if (last_remote_ != nullptr && last_remote_->key.id == id) return last_remote_;
  const auto it =
      std::lower_bound(remote_.begin(), remote_.end(), id,
                       [](const RegionInfo& region, std::uint32_t wanted) { return region.key.id < wanted; });
  last_remote_ = it != remote_.end() && it->key.id == id ? &*it : nullptr;
  return last_remote_;
}

std::string PlanRegions::text(std::size_t index, std::uint32_t region, std::string_view side) const {
  std::string out(unit_);
  out += ' ' + std::to_string(index) + ": ";
  out += side;
  return out + " region " + std::to_string(region);
}

Status PlanRegions::check(std::size_t index, std::uint32_t local_id, const Local* local, std::uint32_t remote_id,
                          const RegionInfo* remote) const {
  if (local == nullptr) return {Code::kNotFound, text(index, local_id, "local") + " is not registered"};
  if (local->info.kind == MemoryKind::kFile) {
    return {Code::kInvalidArgument, text(index, local_id, "local") + " is the file " + local->info.name +
                                        "; a file is the remote side of a plan, with the own node as its peer"};
  }
  if (remote == nullptr) {
    return {Code::kNotFound, text(index, remote_id, "remote") +
                                 " is not known of this peer; refresh() the peer if it was registered lately"};
  }
  const std::uint8_t needed = op_ == Op::kRead ? kRemoteRead : kRemoteWrite;
  if ((remote->access & needed) != 0) return {};
  return {Code::kPermissionDenied, text(index, remote_id, "remote") + " (" + remote->name +
                                       ") does not allow peers to " + (op_ == Op::kRead ? "read" : "write")};
}

Status PlanRegions::out_of_range(std::size_t index, std::string_view side, const RegionInfo& region,
                                 std::uint64_t offset, std::uint64_t length) const {
  return {Code::kOutOfRange, text(index, region.key.id, side) + " (" + region.name + ") has " +
                                 std::to_string(region.length) + " bytes, asked for offset " + std::to_string(offset) +
                                 " length " + std::to_string(length)};
}

}  // namespace kvferry
