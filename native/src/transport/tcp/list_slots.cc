#include "transport/tcp/list_slots.h"

#include "base/limits.h"

namespace kvferry {
namespace {

constexpr std::size_t kFewPieces = 4;  // their descriptors are as good as a name

}  // namespace

ListSlots::Use ListSlots::use(std::uint64_t list, std::uint32_t part, std::size_t pieces) {
  if (list == 0 || pieces < kFewPieces) return {};
  const Key key{list, part};
  if (const auto found = slots_.find(key); found != slots_.end()) return {found->second, true, false};
  Use use;
  if (slots_.size() == kMaxListSlots || pieces > kMaxListPieces - pieces_) {
    // Rather all than the oldest one by one: a plan is used again and again or not at all.
    slots_.clear();
    pieces_ = 0;
    use.forget = true;
  }
  pieces_ += pieces;
  use.slot = static_cast<std::uint32_t>(slots_.size() + 1);
  slots_.emplace(key, use.slot);
  return use;
}

}  // namespace kvferry
