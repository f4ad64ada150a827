#include "store/client/home.h"

#include <algorithm>

#include "store/client/core.h"
#include "store/process.h"

namespace kvferry::store {

Result<std::shared_ptr<Home>> Home::attach(Links& links, const Endpoint& endpoint, const StoreOptions& options,
                                           const Home* before, Deadline deadline) {
  Attach request;
  request.cluster = options.cluster;
  request.who = Attach::Who::kClient;
  const ProcessRef self = ProcessRef::self();
  request.pid = static_cast<std::uint32_t>(self.pid);
  request.process_start = self.start;
  request.shared_memory = std::ranges::count(options.engine.transports, "shm") > 0;
  request.ended_session = before != nullptr ? before->connection_->attached.session : 0;
  KVF_ASSIGN_OR_RETURN(auto connection, links.attach(endpoint, NodeId{}, request, deadline));
  std::shared_ptr<Home> home(new Home(std::move(connection)));
  if (before != nullptr && home->has_page_of(*before)) {
    home->mapped_ = before->mapped_;
    home->reader_ = before->reader_;
    home->process_ = before->process_;
  } else if (home->connection_->attached.page != kNoPage) {
    KVF_RETURN_IF_ERROR(home->map_memory(links.rpc(), deadline));
  }
  links.set_home(home->connection_, home->process_);
  return home;
}

bool Home::has_page_of(const Home& before) const {
  const Attach::Answer& then = before.connection_->attached;
  const Attach::Answer& now = connection_->attached;
  return before.mapped_ && now.page == then.page && now.node == then.node && now.pins == then.pins &&
         now.index == then.index;
}

Status Home::map_memory(RpcEndpoint& rpc, Deadline deadline) {
  const Attach::Answer& given = connection_->attached;
  const auto map = [&](RegionKey key) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    return connection_->peer->map(key, std::max(left, milliseconds(1)));
  };
  auto mapped = std::make_shared<Mapped>();
  mapped->by = connection_;
  SharedMemory shared;
  KVF_ASSIGN_OR_RETURN(shared.index, map(given.index));
  KVF_ASSIGN_OR_RETURN(shared.pins, map(given.pins));
  for (const RegionKey& key : given.arenas) {
    KVF_ASSIGN_OR_RETURN(const std::span<std::byte> arena, map(key));
    mapped->arenas.emplace(key, static_cast<std::uint32_t>(shared.arenas.size()));
    shared.arenas.push_back(arena);
  }
  KVF_ASSIGN_OR_RETURN(mapped->reader, LocalReader::attach(shared, given.page, given.node));
  reader_ = mapped->reader.get();
  if (const auto pid = rpc.engine().process_of(connection_->handle())) process_ = ProcessRef::of(*pid);
  mapped_ = std::move(mapped);
  return {};
}

Status Home::catch_up(ClientCore& core, Deadline deadline) const {
  if (!reader_->puts_waiting()) return {};
  // The node takes in what was put before it answers anybody.
  return core.rpc->call(connection_->handle(), Ping{}, soon(core, deadline)).status();
}

std::vector<std::span<std::byte>> Home::memory(std::span<const Place> places) const {
  std::vector<std::span<std::byte>> runs;
  runs.reserve(places.size());
  for (const Place& place : places) runs.push_back(reader_->memory(place));
  return runs;
}

std::vector<std::span<std::byte>> Home::memory(std::span<const wire::PieceDescriptor> places) const {
  std::vector<std::span<std::byte>> runs;
  runs.reserve(places.size());
  for (const auto& place : places) {
    const auto arena = mapped_->arenas.find(place.region);
    if (arena == mapped_->arenas.end()) return {};
    runs.push_back(reader_->memory({arena->second, place.offset, place.length}));
  }
  return runs;
}

}  // namespace kvferry::store
