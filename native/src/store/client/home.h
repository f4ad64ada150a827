// The node that a client is attached to, and on the node's host its memory, read and written in place.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "store/client/links.h"
#include "store/local_reader.h"
#include "wire/messages.h"

namespace kvferry::store {

struct ClientCore;

class Home {
 public:
  // kUnavailable and others of Engine::connect; kPermissionDenied: another cluster. The node's memory is mapped only if
  // the transports of `options` have shm. `before`: what we were attached to, or null.
  static Result<std::shared_ptr<Home>> attach(Links& links, const Endpoint& endpoint, const StoreOptions& options,
                                              const Home* before, Deadline deadline);

  const std::shared_ptr<const Connection>& connection() const { return connection_; }
  const NodeId& node() const { return connection_->attached.node; }
  bool alive() const { return connection_->peer->status().ok(); }
  const ProcessRef& process() const { return process_; }  // pid 0: not known
  LocalReader* reader() const { return reader_; }         // null: the node is on another host
  // For when something was not found in place although puts_waiting() was true before the look: when this returns, what
  // was put before that is in place, to be looked for again.
  Status catch_up(ClientCore& core, Deadline deadline) const;
  // Places of the node as memory of this process; only if there is a reader. Empty: no such memory.
  std::vector<std::span<std::byte>> memory(std::span<const Place> places) const;
  std::vector<std::span<std::byte>> memory(std::span<const wire::PieceDescriptor> places) const;

 private:
  // The node's memory in this process, and our page of pins in it. A node that we come back to leaves us the page, with
  // the pins of views that are still held: their entries must not be given out twice, so there is one reader for it.
  struct Mapped {
    std::shared_ptr<const Connection> by;       // keeps it mapped
    std::map<RegionKey, std::uint32_t> arenas;  // index of each
    std::unique_ptr<LocalReader> reader;
  };
  explicit Home(std::shared_ptr<const Connection> connection) : connection_(std::move(connection)) {}
  Status map_memory(RpcEndpoint& rpc, Deadline deadline);
  bool has_page_of(const Home& before) const;

  const std::shared_ptr<const Connection> connection_;
  std::shared_ptr<const Mapped> mapped_;
  LocalReader* reader_ = nullptr;  // of `mapped_`
  ProcessRef process_;
};

}  // namespace kvferry::store
