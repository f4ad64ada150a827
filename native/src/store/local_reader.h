// What a client on the node's host, or in its process, does without a message: look up, pin, read in place.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/block_copy.h"
#include "kvferry/object_id.h"
#include "kvferry/status.h"
#include "store/local_store.h"

namespace kvferry::store {

struct SharedMemory {  // of the node, as mapped in this process
  std::span<const std::byte> index;
  std::span<std::byte> pins;
  std::vector<std::span<std::byte>> arenas;
};

struct LocalPin {
  std::uint32_t entry = 0;  // of the client's page
  Held held;
  std::vector<Place> places;
};

// Thread-safe. Trusts nothing in the index: every value is checked against the sizes of the mapped memory, every wait
// is bounded. While the node stands still, and until it has caught up afterwards, nothing is found: others may know
// better.
class LocalReader {
 public:
  struct QuickPut {
    bool stored = false;  // else nothing was done
    bool ring = false;    // the node should hear of it soon: little is offered any more, or many puts wait
  };

  // `page`: what LocalStore::add_client() gave. kProtocolError: not an index of this version, or not `node`'s.
  static Result<std::unique_ptr<LocalReader>> attach(const SharedMemory& memory, std::uint32_t page,
                                                     const NodeId& node);
  virtual ~LocalReader() = default;

  virtual std::optional<Held> find(const ObjectId& id) const = 0;
  // As find() for many: found[i] becomes 1 or 0.
  virtual void exists(std::span<const ObjectId> ids, std::span<std::uint8_t> found) const = 0;
  // nullopt: absent, or on SSD (find() tells). Counts as an access. kResourceExhausted: the page has no entry free.
  virtual Result<std::optional<LocalPin>> pin(const ObjectId& id) = 0;
  virtual void unpin(const LocalPin& pin) = 0;
  virtual void accessed(std::span<const ObjectId> ids) = 0;  // a hint for the node's eviction; may be lost
  virtual std::span<std::byte> memory(const Place& place) const = 0;

  // Around all writes to memory that the client's session reserved. False: do not write, the node has taken it back.
  virtual bool begin_writing(Session session) = 0;
  virtual void end_writing(Session session) = 0;

  // Stores it without a message, if the node has offered memory of that size and nothing is known of the id. Not
  // stored: put it by message; it may be there already.
  virtual QuickPut put(const NewObject& object, ConstPieces value, Stores stores) = 0;
  // Something was put so that is not in the index yet: what was not found may be found once the node has answered any
  // request.
  virtual bool puts_waiting() const = 0;
  // What is not found here is nowhere: no other node has anything to say about it. To be asked before the look.
  virtual bool knows_all() const = 0;
};

}  // namespace kvferry::store
