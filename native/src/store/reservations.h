// Puts that are under way: memory that somebody may be writing to. It is used again only when nobody can write to it
// any more: the put was committed or aborted, or its session ended and its last write cannot land late. Under the
// store's lock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "store/local_store.h"

namespace kvferry::store {

struct Reservation {
  Session session = 0;
  NewObject object;
  std::uint32_t slot = 0;
  std::vector<Place> places;
  Deadline lease_end;
  bool ended = false;  // the lease: cannot be committed any more, has no slot, but its memory may still be written to
  bool contested = false;  // removed or retracted meanwhile: what others were told of it does not hold any more
};

class Reservations {
 public:
  PutId add(Reservation reservation);
  // Nothing if it is unknown or another session's.
  std::optional<Reservation> take(Session session, PutId put);
  const Reservation* find(Session session, PutId put) const;
  // Marks those of one object, or all.
  void contest(const ObjectId& id);
  void contest_all();
  // Those of this object are contested again and again, until it is released.
  void hold_back(const ObjectId& id) { held_back_.insert(id); }
  void release(const ObjectId& id);
  // Whether it had been marked, which it is not any more, or is held back. False if it is unknown.
  bool is_contested(PutId put);
  // Marks those whose lease ended; hands on the slots that they had.
  std::vector<std::uint32_t> end_leases(Clock::time_point now);

  using StillWrites = std::function<bool()>;
  // Nobody can commit them any more. They are handed out at once, or by take_written() if `still_writes` is given.
  std::vector<Reservation> end_session(Session session, StillWrites still_writes);
  struct Ending {
    std::shared_ptr<const StillWrites> still_writes;
    std::vector<Reservation> reservations;
  };
  // Whom to ask, without the lock, whether it still writes; then take_written() with those that do not.
  std::vector<std::shared_ptr<const StillWrites>> ending() const;
  std::vector<Reservation> take_written(const std::shared_ptr<const StillWrites>& ended);

  std::size_t size() const { return open_.size(); }
  std::uint64_t reserved_bytes() const { return bytes_; }            // of memory, rounded as the arenas do
  std::uint64_t memory_bytes() const { return open_.size() * 512; }  // roughly

 private:
  std::unordered_map<PutId, Reservation> open_;
  std::unordered_set<ObjectId> held_back_;
  std::vector<Ending> ending_;
  PutId last_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace kvferry::store
