// Reading objects: from this host's memory in place, from its node's SSD, from other nodes; the next holder after one
// that fails. What is delivered is what a node vouched for until the last byte was copied.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "store/client/core.h"
#include "store/client/where.h"

namespace kvferry::store {

struct Want {  // one object, or a part of it
  ObjectId id;
  Pieces target;
  std::uint64_t offset = 0;
  bool whole = true;  // else as many bytes as the target has, from `offset` on
  bool verify = false;
  GetResult result;
  bool done = false;
  Status trouble;  // why it was found and not read, unless it is done later
  Status late;     // what a node that was asked for it said last, for when the time is over

  std::uint64_t room() const;
  void finish(Status status, std::uint64_t bytes);
};

// Sets the results of all.
void get(ClientCore& core, std::span<Want> wants, Deadline deadline);

}  // namespace kvferry::store
