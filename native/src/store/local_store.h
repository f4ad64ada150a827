// The objects of one node: table and index, memory, SSD log, eviction. Knows no peer and no message. Thread-safe.
//
// Life of an object's memory: reserved -> (written by whoever reserved it) -> committed: visible -> pinned by readers,
// any number -> removed, evicted or moved to SSD: invisible at once, its memory is used again when the last pin is
// gone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/object_id.h"
#include "kvferry/status.h"
#include "kvferry/store.h"
#include "kvferry/types.h"

namespace kvferry::store {

namespace log {
class Disk;
}

struct Place {  // a run of an object's bytes in one of the node's arenas
  std::uint32_t arena = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  bool operator==(const Place&) const = default;
};

struct NewObject {
  ObjectId id;
  std::string key;     // up to kMaxKeyBytes
  std::string tenant;  // up to kMaxTenantBytes
  std::uint64_t bytes = 0;
  std::uint32_t replicas = 1;                           // wanted in the cluster; kept for whoever repairs
  std::optional<std::chrono::milliseconds> expires_in;  // from now
  std::vector<std::string> tags;
  ObjectId parent;  // nil: none
  std::uint32_t depth = 0;
  bool extra = false;  // a replica of a hot object beyond the wanted ones: first to go
};

struct Held {  // what the node has of an object
  std::uint64_t bytes = 0;
  ContentDigest digest;
  Tier tier = Tier::kDram;
  std::uint32_t replicas = 1;
};

// Whoever reserves and pins: a client or a peer. Everything it holds ends with end_session(), after which no call names
// it any more. 0: the node itself.
using Session = std::uint64_t;
using PutId = std::uint64_t;  // never used again
using PinId = std::uint64_t;  // never used again

struct Reserved {
  std::optional<Held> existing;  // the object is there already: nothing was reserved
  PutId put = 0;
  std::vector<Place> places;  // at most 8; none for 0 bytes
};

struct Pinned {
  PinId pin = 0;
  Held held;
  std::vector<Place> places;
};

struct LocalStoreOptions {
  // All of it zeroed, at multiples of a page, and there until the store is gone.
  std::vector<std::span<std::byte>> arenas;  // written and read by this process, mapped by clients; 65,536 at most
  std::span<std::byte> index;                // shared with clients, who only read it: index_bytes() of it
  std::span<std::byte> pins;                 // shared with clients, a page of it for each: pins_bytes() of it
  NodeId node_id;
  NodeOptions node;
  std::shared_ptr<log::Disk> ssd_disk;  // tests: another file system
};

// The functions that it is given own what they need: one may be called a last time just after it was withdrawn, up to
// the end of close().
class LocalStore {
 public:
  static std::uint64_t index_bytes(const NodeOptions& options);
  static std::uint64_t pins_bytes(const NodeOptions& options);
  // kInvalidArgument: more objects than an index describes. What it says, and about_index(), tells users what to
  // change.
  static Status check_index(const NodeOptions& options);
  static std::string about_index(const NodeOptions& options);
  static constexpr std::uint32_t kMaxClients = 256;

  static Result<std::unique_ptr<LocalStore>> create(LocalStoreOptions options);
  virtual ~LocalStore() = default;

  // Makes room by eviction if need be. Where objects leave memory for SSD or another node it waits for that until
  // `deadline` (kDeadlineExceeded), and drops none unless the disk fails or stands still. kResourceExhausted:
  // everything is pinned or reserved now (the message says how much, and to try again), and then nothing was evicted
  // for it; kOutOfRange: larger than all memory; kInvalidArgument. Two reservations of one id may be under way at once;
  // the first commit wins. When the lease ends, the put is over, but its memory is kept until the session aborts it or
  // ends: whoever is so late may also write late.
  virtual Result<Reserved> reserve(Session session, const NewObject& object, Deadline deadline) = 0;
  // Makes it visible. True: created; false: somebody else had committed the same bytes. kConflict: other bytes are
  // there. kNotFound: unknown put id, or its lease ended. kStale, once: the object was removed or contested since it
  // was reserved, or, as long as that lasts, held back; the put stays under way, to be told to whoever must know, and
  // committed again.
  virtual Result<bool> commit(Session session, PutId put, const ContentDigest& digest) = 0;
  // The session will not write there any more: the memory is used again at once. Also of a put whose lease ended.
  virtual void abort(Session session, PutId put) = 0;

  virtual std::optional<Held> find(const ObjectId& id) const = 0;  // no access, no pin
  // Counts as an access. Brings it back from SSD if need be, until `deadline`. kNotFound; kResourceExhausted;
  // kDataCorrupt (it is then dropped: absent from now on); kUnavailable, kDeadlineExceeded: it could not be read now.
  virtual Result<Pinned> pin(Session session, const ObjectId& id, Deadline deadline) = 0;
  virtual bool unpin(Session session, PinId pin) = 0;  // false: the lease had ended, what was read may be wrong
  // False if absent. Waits up to a second for the log, so that what was removed does not come back after a crash.
  virtual bool remove(const ObjectId& id) = 0;
  // Others are about to be told that it is not here: it does not come, either, until release_puts() (see commit).
  // False, and nothing is held back: it is here. One caller at a time.
  virtual bool hold_puts_back(const ObjectId& id) = 0;
  // They have been told: whoever is putting it must say once more that it will be here.
  virtual void release_puts(const ObjectId& id) = 0;
  // All that others were told of puts under way may be forgotten, and must be said once more.
  virtual void contest_puts() = 0;

  // Everything of that session is released: at once, or, if `still_writes` is given, when that has returned false (it
  // is asked from a thread of the store's, some times a second).
  virtual void end_session(Session session, std::function<bool()> still_writes = nullptr) = 0;

  // A page of `pins` for a client of this host. kResourceExhausted. `gone` says whether its process has ended (asked
  // from a thread of the store's); only then are its pins void.
  virtual Result<std::uint32_t> add_client(std::function<bool()> gone) = 0;
  // Thread-safe, without waiting: what the session of that client reserved is not written to from now on; true: nor is
  // it being written to. Until then its memory must not be used again.
  virtual bool fence_client(std::uint32_t page, Session session) = 0;
  virtual void remove_client(std::uint32_t page) = 0;  // it left of its own accord: its page is clear

  // Puts of clients of this host without a message (quick_layout.h). Allowed only while all that is put is this node's
  // to accept, and nobody else need hear of it: not at first. When this returns with false, there are no more.
  virtual void allow_quick_puts(bool allow) = 0;
  // Lock-free. True: what settle_quick_puts() would take in, or tell of, is there.
  virtual bool quick_puts_waiting() const = 0;
  struct QuickPutsDone {
    std::vector<ObjectId> ids;  // put since the last call
    std::uint64_t bytes = 0;
  };
  // Makes visible what was put until now. To be called before anybody is answered what is here.
  virtual QuickPutsDone settle_quick_puts() = 0;
  // The client wrote a value of that size in place: it is offered memory for more of them.
  virtual void offer_quick_puts(std::uint32_t page, std::uint64_t bytes) = 0;

  // Visits what is held, in no order, a snapshot not needed: objects come and go meanwhile. False from `visit` ends it.
  virtual void for_each(const std::function<bool(const ObjectId&, const Held&)>& visit) const = 0;
  virtual std::vector<ObjectInfo> list(std::string_view tenant, std::string_view prefix, std::string_view after,
                                       std::uint32_t limit) const = 0;
  virtual std::vector<ObjectId> with_tag(std::string_view tenant, std::string_view tag) const = 0;
  virtual std::optional<NewObject> describe(
      const ObjectId& id) const = 0;                         // all that another node must know to hold it
  virtual void prefetch(std::span<const ObjectId> ids) = 0;  // brings them back from SSD, in the background

  // Called, without locks, by one thread of the store's, soon after objects left this node by eviction, expiry or
  // corruption (not by remove()). One may have been put again by then: find() tells. Must not wait long.
  virtual void on_dropped(std::function<void(std::span<const ObjectId>)> callback) = 0;
  // Asked before an object is evicted for good or to SSD, when NodeOptions::demote_to_remote: true if another node has
  // taken it.
  virtual void on_demote(std::function<bool(const ObjectId&)> callback) = 0;

  virtual NodeStats stats() const = 0;
  // For tests: kInternal, with the figures, unless every byte of memory is free, an object's, reserved, or still read
  // although its object is gone, and index and table agree.
  virtual Status check() const = 0;
  virtual void close() = 0;  // writes what is still to be written to the log; idempotent
};

}  // namespace kvferry::store
