// Storing objects: written in place into the node's memory on its host, else read by the node out of ours.
#pragma once

#include <span>
#include <vector>

#include "store/client/core.h"

namespace kvferry::store {

struct Offer {  // one object to be stored
  NewObject object;
  ConstPieces value;
  PutResult result;
  bool done = false;

  void finish(PutResult how) {
    result = std::move(how);
    done = true;
  }
};

// Sets the results of all.
void put(ClientCore& core, std::span<Offer> offers, Deadline deadline);

}  // namespace kvferry::store
