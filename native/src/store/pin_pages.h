// The node's view of the pages in which clients keep their pins. Under the store's lock, but for what says otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kvferry/status.h"
#include "store/pin_layout.h"

namespace kvferry::store {

class PinPages {
 public:
  explicit PinPages(std::span<std::byte> memory);

  // kResourceExhausted: all pages are taken.
  Result<std::uint32_t> add(std::function<bool()> gone);
  void remove(std::uint32_t page);
  std::uint32_t clients() const { return clients_; }

  // Thread-safe. No thread of the client begins to write to what that session reserved any more; true: and none does.
  bool fence(std::uint32_t page, std::uint64_t session);

  // Appends what clients have pinned now, as pin words, in no order. To be called after the objects in question were
  // made invisible: a reader that has not written its entry by now will see that.
  void collect(std::vector<std::uint64_t>& pinned) const;
  // Hands on what clients used since the last call, as far as it was not lost. Slots are not checked.
  void drain_accesses(const std::function<void(std::uint32_t slot)>& accessed);

  struct Watched {
    std::uint32_t page = 0;
    std::shared_ptr<const std::function<bool()>> gone;
  };
  // Whom to ask, without the lock, whether its process has ended; then, if it is still the same client, remove().
  std::vector<Watched> watched() const;
  bool is_same(const Watched& client) const { return table_[client.page].gone == client.gone; }

 private:
  struct Client {
    std::shared_ptr<const std::function<bool()>> gone;  // null: the page is free
    std::uint32_t notes_seen = 0;
  };
  std::span<PinPage> pages_;
  std::vector<Client> table_;
  std::uint32_t clients_ = 0;
};

}  // namespace kvferry::store
