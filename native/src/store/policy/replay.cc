#include "store/policy/replay.h"

#include <algorithm>
#include <string>
#include <unordered_map>

namespace kvferry::store {
namespace {

std::uint64_t mixed(std::uint64_t x) {  // splitmix64: ids of traces are often small numbers
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

ObjectId object_id(std::uint64_t id) { return {mixed(id), mixed(~id)}; }

class Cache {
 public:
  Cache(PolicyKind kind, std::uint64_t capacity, bool chained)
      : policy_(make_policy(kind, capacity, view())), capacity_(capacity), chained_(chained) {}

  std::uint64_t request(std::span<const std::uint64_t> ids, std::span<const std::uint64_t> bytes) {
    ++request_;
    std::size_t held = 0;
    std::vector<Slot> found;
    for (const std::uint64_t id : ids) {
      const auto slot = slots_.find(mixed(id));
      if (slot == slots_.end()) break;
      blocks_[slot->second].request = request_;
      found.push_back(slot->second);
    }
    held = found.size();
    // An engine that knows of chains uses the ends first.
    if (chained_) std::reverse(found.begin(), found.end());
    for (const Slot slot : found) policy_->access(slot);
    for (std::size_t i = held; i < ids.size(); ++i) put(ids, i, bytes[i]);
    return held;
  }
  std::uint64_t policy_bytes() const { return policy_->memory_bytes(); }
  std::uint64_t most_objects() const { return blocks_.size(); }

 private:
  struct Block {
    std::uint64_t id = 0;
    std::uint64_t bytes = 0;
    std::uint64_t request = 0;  // the last one that used it
  };

  void put(std::span<const std::uint64_t> ids, std::size_t i, std::uint64_t bytes) {
    if (const auto slot = slots_.find(mixed(ids[i])); slot != slots_.end()) {  // behind one that went
      blocks_[slot->second].request = request_;
      return policy_->access(slot->second);
    }
    if (bytes > capacity_ || !make_room_for(bytes)) return;
    if (spare_.empty()) {
      spare_.push_back(static_cast<Slot>(blocks_.size()));
      blocks_.emplace_back();
    }
    const Slot slot = spare_.back();
    spare_.pop_back();
    blocks_[slot] = {ids[i], bytes, request_};
    slots_.emplace(mixed(ids[i]), slot);
    used_ += bytes;
    const bool first = i == 0 || !chained_;
    policy_->insert(slot, {object_id(ids[i]), bytes, first ? ObjectId{} : object_id(ids[i - 1]),
                           first ? 0 : static_cast<std::uint32_t>(i)});
  }

  bool make_room_for(std::uint64_t bytes) {
    const auto may_take = [this](Slot slot) { return blocks_[slot].request != request_; };
    std::size_t tries = blocks_.size() / EvictionPolicy::kMaxLooks + 2;
    while (bytes > capacity_ - used_) {
      const Slot slot = policy_->victim(may_take);
      if (slot == kNoSlot && --tries == 0) return false;
      if (slot == kNoSlot) continue;
      policy_->erase(slot);
      used_ -= blocks_[slot].bytes;
      slots_.erase(mixed(blocks_[slot].id));
      spare_.push_back(slot);
    }
    return true;
  }

  ObjectsView view() {
    return {[this](Slot slot) { return object_id(blocks_[slot].id); },
            [this](const ObjectId& id) {
              const auto slot = slots_.find(id.hi);
              return slot == slots_.end() ? std::nullopt : std::optional(slot->second);
            }};
  }

  std::unique_ptr<EvictionPolicy> policy_;
  std::uint64_t capacity_;
  bool chained_;
  std::uint64_t used_ = 0;
  std::uint64_t request_ = 0;
  std::unordered_map<std::uint64_t, Slot> slots_;  // by the first half of the object id
  std::vector<Block> blocks_;
  std::vector<Slot> spare_;
};

}  // namespace

Result<ReplayResult> replay(PolicyKind kind, std::uint64_t capacity_bytes, const ReplayInput& input) {
  const auto offsets = input.offsets;
  if (input.bytes.size() != input.ids.size()) return {Code::kInvalidArgument, "ids and bytes differ in number"};
  if (offsets.empty() || !std::is_sorted(offsets.begin(), offsets.end()) || offsets.back() > input.ids.size()) {
    return {Code::kInvalidArgument,
            "offsets must be in order and end within the " + std::to_string(input.ids.size()) + " ids"};
  }
  Cache cache(kind, capacity_bytes, input.chained);
  ReplayResult result;
  result.hits.reserve(offsets.size() - 1);
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::size_t count = offsets[i + 1] - offsets[i];
    result.hits.push_back(cache.request(input.ids.subspan(offsets[i], count), input.bytes.subspan(offsets[i], count)));
  }
  result.policy_bytes = cache.policy_bytes();
  result.most_objects = cache.most_objects();
  return result;
}

}  // namespace kvferry::store
