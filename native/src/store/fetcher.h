// Brings objects from other nodes, or from a client's memory, into this one's: reserve, one-sided read, check, publish.
// Thread-safe; every call waits for the data, until its deadline.
#pragma once

#include <span>
#include <vector>

#include "store/publisher.h"

namespace kvferry::store {

struct FetchOptions {
  bool extra = false;         // a replica of a hot object, first to go
  bool only_if_room = false;  // rather fail than evict for it
};

class Fetcher {
 public:
  Fetcher(NodeCore& core, Finder& finder, Publisher& publisher) : core_(core), finder_(finder), publisher_(publisher) {}

  // From the node at that connection. One status per id; OK also for what is here already.
  std::vector<Status> fetch(std::uint64_t peer, std::span<const ObjectId> ids, const FetchOptions& options,
                            Deadline deadline);
  // From whoever holds them, one after the other.
  std::vector<Status> fetch_anywhere(std::span<const ObjectId> ids, const FetchOptions& options, Deadline deadline);
  // A connection to a member, or to whoever is connected under that id.
  Result<std::uint64_t> connection_to(const NodeId& node) const;

  // Reads the pieces of the peer's memory into places of ours; the sums of the lengths are equal.
  Status read(std::uint64_t peer, std::span<const Place> to, std::span<const wire::PieceDescriptor> from,
              Deadline deadline);

 private:
  struct Incoming;
  void fetch_some(std::uint64_t peer, std::span<Incoming*> some, const FetchOptions& options, Deadline deadline);
  void reserve(Incoming& one, const FetchOptions& options, Deadline deadline);
  void read_all(std::uint64_t peer, std::span<Incoming*> some, Deadline deadline);
  void unpin(std::uint64_t peer, std::span<Incoming*> some, Deadline deadline);
  void publish(std::span<Incoming*> some, Deadline deadline);
  Status transfer(std::uint64_t peer, const std::vector<Piece>& pieces, Deadline deadline,
                  std::vector<Status>* results);
  void cut(std::span<const Place> to, std::span<const wire::PieceDescriptor> from, std::vector<Piece>* pieces) const;

  NodeCore& core_;
  Finder& finder_;
  Publisher& publisher_;
};

}  // namespace kvferry::store
