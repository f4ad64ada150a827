// A client's hand on its page of pins. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "store/pin_layout.h"

namespace kvferry::store {

class ClientPage {
 public:
  explicit ClientPage(PinPage& page) : page_(page) {}

  // Writes `word` into a free entry, sequentially consistent: look again afterwards whether the object is still there.
  std::optional<std::uint32_t> enter(std::uint64_t word);
  void leave(std::uint32_t entry);
  bool in_use(std::uint32_t entry) const;
  void note_access(std::uint32_t slot);
  // False: the node has taken back what the session reserved.
  bool begin_writing(std::uint64_t session);
  void end_writing(std::uint64_t session);

 private:
  void raise_high_water(std::uint32_t entries);
  PinPage& page_;
  std::array<std::atomic<std::uint64_t>, kPinEntries / 64> taken_{};  // a bit for each entry
};

}  // namespace kvferry::store
