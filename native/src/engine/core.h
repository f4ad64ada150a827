// What all parts of one engine share. Owned by the Engine and by every Peer, so that a Peer may outlive its engine.
#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/counters.h"
#include "base/numa.h"
#include "engine/connection_set.h"
#include "engine/files.h"
#include "engine/hooked_engine.h"
#include "engine/inbox.h"
#include "engine/keeper.h"
#include "engine/peer_table.h"
#include "engine/thread_group.h"
#include "kvferry/engine.h"
#include "memory/arena_table.h"
#include "memory/region_directory.h"
#include "memory/region_table.h"
#include "topology/numa_distances.h"
#include "transport/greeting.h"
#include "transport/shm/attachments.h"
#include "transport/transport.h"

namespace kvferry {

class SelfPeer;

struct EngineCore {
  EngineCore(EngineOptions opts, EngineHooks callbacks, RegionDirectoryWriter region_directory,
             Interrupt stop_everything);

  std::string metadata() const;
  void set_metadata(std::string text);
  std::vector<Transport*> ranked_transports() const;  // best first; only the first unless fallback is allowed
  void forget_peer(const PeerImpl& peer);             // called once by the peer when it is lost
  void place_thread() const;                          // the calling one goes where our memory is, if that is one node
  // kUnsupported in a child made by fork(): it has none of our threads, its locks may be held for ever, and its sockets
  // are the parent's, who still talks over them.
  Status check_process() const;

  const EngineOptions options;
  const EngineHooks hooks;
  const Interrupt stop;     // set by close(): ends waits for the outside
  LocalNode local;          // complete before the first thread starts, constant afterwards
  NumaPlacement placement;  // of our arenas; constant like `local`, as is the next
  NumaDistances distances;  // known if there are several rails to choose from
  Counters counters;
  RegionDirectoryWriter directory;
  RegionTable regions;
  ArenaTable arenas;
  Files files;
  ShmAttachments attachments;
  std::vector<std::unique_ptr<Transport>> transports;  // in the order of options.transports; constant like `local`
  std::unique_ptr<Transport> local_transport, file_transport;  // to our own memory and files; constant, too
  std::weak_ptr<SelfPeer> self;                                // likewise
  Inbox inbox;
  PeerTable peers;
  ConnectionSet inbound;
  Keeper keeper;
  ThreadGroup threads;  // last: destroyed, and so joined, first

 private:
  const pid_t process_;
  const std::uint64_t forks_;  // as of then
  mutable std::mutex metadata_mutex_;
  std::string metadata_;
};

}  // namespace kvferry
