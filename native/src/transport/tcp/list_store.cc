#include "transport/tcp/list_store.h"

#include <string>

#include "base/limits.h"

namespace kvferry {

void ListStore::clear() {
  pieces_.clear();
  ends_.clear();
}

Status ListStore::remember(std::uint32_t slot, std::span<const wire::PieceDescriptor> pieces) {
  if (slot != ends_.size() + 1 || slot > kMaxListSlots) {
    return {Code::kProtocolError, "list slot " + std::to_string(slot) + " is not the first free one"};
  }
  if (pieces.size() > kMaxListPieces - pieces_.size()) {
    return {Code::kProtocolError, "more remembered pieces than a connection may have"};
  }
  pieces_.insert(pieces_.end(), pieces.begin(), pieces.end());
  ends_.push_back(pieces_.size());
  return {};
}

Result<std::span<const wire::PieceDescriptor>> ListStore::find(std::uint32_t slot) const {
  if (slot == 0 || slot > ends_.size()) {
    return {Code::kProtocolError, "list slot " + std::to_string(slot) + " is empty"};
  }
  const std::size_t first = slot == 1 ? 0 : ends_[slot - 2];
  return std::span(pieces_).subspan(first, ends_[slot - 1] - first);
}

}  // namespace kvferry
