// Which lists of pieces the owner at the other end of a data connection keeps, and in which slot. This side decides
// alone, within the limits of both, so the owner never has to say that it forgot one. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace kvferry {

class ListSlots {
 public:
  struct Use {
    std::uint32_t slot = 0;  // 0: the list is not worth a slot
    bool known = false;      // the owner has it: the slot is enough
    bool forget = false;     // the owner must empty all slots first
  };
  // How a request for part `part` of the list `list` (Batch::list), with that many pieces, names it.
  Use use(std::uint64_t list, std::uint32_t part, std::size_t pieces);

 private:
  struct Key {
    std::uint64_t list;
    std::uint32_t part;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      return static_cast<std::size_t>(key.list * 0x9e3779b97f4a7c15u + key.part);
    }
  };
  std::unordered_map<Key, std::uint32_t, Hash> slots_;
  std::size_t pieces_ = 0;  // in all of them
};

}  // namespace kvferry
