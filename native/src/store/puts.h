// Puts of clients, in their three forms: written in place, sent along, read out of the client's memory. Thread-safe.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "store/replicator.h"

namespace kvferry::store {

class Puts {
 public:
  Puts(NodeCore& core, Publisher& publisher, Fetcher& fetcher, Replicator& replicator)
      : core_(core), publisher_(publisher), fetcher_(fetcher), replicator_(replicator) {}

  // `wait` false: nullopt, with nothing changed, if it would take waiting. An object for which no room was made within
  // a moment ends with kDeadlineExceeded: its client, who knows how long it has, asks again.
  std::optional<Reserve::Answer> reserve(Session session, std::span<const NewObject> objects, bool wait);
  std::optional<PutAnswer> commit(Session session, const Commit& commit, bool wait);
  std::optional<PutAnswer> put_inline(Session session, const PutInline& put, bool wait);
  PutAnswer put_from(Session session, std::uint64_t peer, const PutFrom& put);
  void abort(Session session, const Abort& abort);
  void end_session(Session session) { core_.puts.end_session(session); }

 private:
  struct Open {  // an object on its way in
    PutDone done;
    bool finished = false;
    bool extra = false;
    Claim claim;
    std::vector<Place> places;
    void end(Status why) {
      done.status = std::move(why);
      finished = true;
    }
  };
  Status check(const NewObject& object) const;
  Deadline deadline() const;
  // nullopt as `room_until`: it must not wait; then false: it would have to.
  using RoomUntil = std::optional<Deadline>;
  static RoomUntil room_until(bool wait);
  bool open(Session session, NewObject object, const ContentDigest* digest, RoomUntil until, Open* out);
  void open_pull(Session session, const PutFrom::Item& item, Deadline until, Open* out);
  std::vector<Status> pull(std::uint64_t peer, const PutFrom& put, std::span<const Open> puts);
  void finish(std::span<Open> puts, PutAnswer* answer);
  void replicate(std::span<Open> puts);
  void count(const Open& put);

  NodeCore& core_;
  Publisher& publisher_;
  Fetcher& fetcher_;
  Replicator& replicator_;
};

}  // namespace kvferry::store
