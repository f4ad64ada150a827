#include "store/reservations.h"

#include <algorithm>
#include <utility>

#include "store/arena_set.h"

namespace kvferry::store {

PutId Reservations::add(Reservation reservation) {
  bytes_ += ArenaSet::rounded(reservation.object.bytes);
  open_.emplace(++last_, std::move(reservation));
  return last_;
}

const Reservation* Reservations::find(Session session, PutId put) const {
  const auto found = open_.find(put);
  return found == open_.end() || found->second.session != session ? nullptr : &found->second;
}

void Reservations::contest(const ObjectId& id) {
  for (auto& [put, reservation] : open_) {
    if (reservation.object.id == id) reservation.contested = true;
  }
}

void Reservations::contest_all() {
  for (auto& [put, reservation] : open_) reservation.contested = true;
}

void Reservations::release(const ObjectId& id) {
  held_back_.erase(id);
  contest(id);
}

bool Reservations::is_contested(PutId put) {
  const auto found = open_.find(put);
  if (found == open_.end()) return false;
  return std::exchange(found->second.contested, false) || held_back_.contains(found->second.object.id);
}

std::optional<Reservation> Reservations::take(Session session, PutId put) {
  const auto found = open_.find(put);
  if (found == open_.end() || found->second.session != session) return std::nullopt;
  Reservation taken = std::move(found->second);
  open_.erase(found);
  bytes_ -= ArenaSet::rounded(taken.object.bytes);
  return taken;
}

std::vector<std::uint32_t> Reservations::end_leases(Clock::time_point now) {
  std::vector<std::uint32_t> slots;
  for (auto& [put, reservation] : open_) {
    if (reservation.ended || reservation.lease_end > now) continue;
    reservation.ended = true;
    slots.push_back(reservation.slot);
  }
  return slots;
}

std::vector<Reservation> Reservations::end_session(Session session, StillWrites still_writes) {
  std::vector<Reservation> of_session;
  std::erase_if(open_, [&](auto& entry) {
    if (entry.second.session != session) return false;
    of_session.push_back(std::move(entry.second));
    return true;
  });
  if (of_session.empty()) return {};
  if (still_writes) {
    ending_.push_back({std::make_shared<const StillWrites>(std::move(still_writes)), std::move(of_session)});
    return {};
  }
  for (const Reservation& reservation : of_session) bytes_ -= ArenaSet::rounded(reservation.object.bytes);
  return of_session;
}

std::vector<std::shared_ptr<const Reservations::StillWrites>> Reservations::ending() const {
  std::vector<std::shared_ptr<const StillWrites>> all;
  for (const Ending& ending : ending_) all.push_back(ending.still_writes);
  return all;
}

std::vector<Reservation> Reservations::take_written(const std::shared_ptr<const StillWrites>& ended) {
  const auto found =
      std::find_if(ending_.begin(), ending_.end(), [&](const Ending& ending) { return ending.still_writes == ended; });
  if (found == ending_.end()) return {};
  std::vector<Reservation> taken = std::move(found->reservations);
  ending_.erase(found);
  for (const Reservation& reservation : taken) bytes_ -= ArenaSet::rounded(reservation.object.bytes);
  return taken;
}

}  // namespace kvferry::store
