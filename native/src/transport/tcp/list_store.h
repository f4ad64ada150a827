// The lists of pieces that the initiator of a data connection wants to be remembered. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvferry/status.h"
#include "wire/messages.h"

namespace kvferry {

class ListStore {
 public:
  void clear();
  // kProtocolError: not the first free slot, or more than the connection may have.
  Status remember(std::uint32_t slot, std::span<const wire::PieceDescriptor> pieces);
  // kProtocolError: the slot is empty. Valid until the next remember() or clear().
  Result<std::span<const wire::PieceDescriptor>> find(std::uint32_t slot) const;

 private:
  std::vector<wire::PieceDescriptor> pieces_;  // of all lists, in the order of the slots
  std::vector<std::size_t> ends_;              // of slot 1, 2, ... in pieces_
};

}  // namespace kvferry
