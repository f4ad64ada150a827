// The node's side of puts without a message: what it offers to clients, and what they put. Trusts nothing that a client
// writes. Under the store's lock, but for what says otherwise.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvferry/types.h"
#include "store/quick_layout.h"

namespace kvferry::store {

class QuickPuts {
 public:
  struct Offer {  // memory and slot of an object to come
    std::vector<Place> places;
    std::uint64_t room = 0;  // bytes, rounded as the arenas do
    std::uint32_t slot = 0;
  };
  struct Put {
    Offer offer;
    NewObject object;
    ContentDigest digest;
    std::uint64_t expires_ms = kNeverExpires;
    bool sane = false;  // else it is none: a client wrote nonsense
  };

  explicit QuickPuts(std::span<std::byte> pins) : memory_(QuickMemory::of(pins)) {}

  // Thread-safe, without the lock. There are puts that are not in the index yet.
  bool waiting() const;
  // Clients may put. Only with the door locked, or not open.
  void open(bool open);
  bool is_open() const { return open_; }

  // From here until unlock() no client puts. What they put until now, in order.
  std::vector<Put> lock();
  void unlock();

  // A client wrote a value of this size, and may write more of them.
  void want(std::uint32_t page, std::uint64_t bytes, Clock::time_point now);
  // Sizes that clients lack offers of, one for each offer.
  struct Want {
    std::uint32_t page = 0;
    std::uint64_t room = 0;
  };
  std::vector<Want> wanted();
  // False: the client has no entry free.
  bool offer(std::uint32_t page, const Offer& offer);

  // Offers that were not taken are the node's again.
  std::vector<Offer> take_back_others(std::uint32_t page);   // of other sizes than the client writes now
  std::vector<Offer> take_back();                            // all
  std::vector<Offer> take_back_idle(Clock::time_point now);  // of clients that have not put for a while
  // The client has gone, and what it put was taken in: whatever it had is the node's.
  std::vector<Offer> end(std::uint32_t page);

  std::uint64_t bytes() const { return bytes_; }    // offered or being written to, rounded
  std::uint64_t offers() const { return offers_; }  // as many slots

 private:
  struct Client {
    std::array<std::optional<Offer>, kQuickEntries> offers;
    std::uint64_t room = 0;  // of the values that it writes
    Clock::time_point used{};
  };
  Client* client(std::uint32_t page) { return page < clients_.size() ? clients_[page].get() : nullptr; }
  QuickDoor door() const { return QuickDoor::of(memory_.door->load(std::memory_order_acquire)); }
  std::optional<Put> take(std::uint32_t ref);
  static void read(const QuickEntry& entry, Put* put);
  std::optional<Offer> take_back(std::uint32_t page, std::uint32_t entry);
  void take_back_of(std::uint32_t page, std::uint64_t but_room, std::vector<Offer>* out);
  Offer release(Client& client, std::uint32_t entry);

  const QuickMemory memory_;
  bool open_ = false;
  std::vector<std::unique_ptr<Client>> clients_;  // by page; null: never wanted any
  std::uint64_t bytes_ = 0;
  std::uint64_t offers_ = 0;
};

}  // namespace kvferry::store
