// One node's objects, pinned there while they are read: in place if its memory is mapped here, else one-sidedly.
#pragma once

#include <span>
#include <vector>

#include "store/client/core.h"
#include "store/client/gets.h"
#include "store/runs.h"

namespace kvferry::store {

// Copies what is asked for out of an object's bytes, and checks it if that is wanted.
// `stores`: what suits all that is delivered at once.
void deliver(Want& want, ConstPieces object, const Held& held, Stores stores);

// Delivers those that the node holds and leaves the others open. `mapped`: not null if the node's memory is mapped
// here. Not OK: the node or the way to it failed; what is open then may be with others.
Status read_pinned(ClientCore& core, const std::shared_ptr<const Connection>& node, const Home* mapped,
                   std::span<Want* const> wants, Deadline deadline);

}  // namespace kvferry::store
