#include "store/client/home.h"

#include <algorithm>

#include "store/process.h"

namespace kvferry::store {

Result<std::shared_ptr<Home>> Home::attach(Links& links, const Endpoint& endpoint, const StoreOptions& options,
                                           std::uint64_t ended_session, Deadline deadline) {
  Attach request;
  request.cluster = options.cluster;
  request.who = Attach::Who::kClient;
  const ProcessRef self = ProcessRef::self();
  request.pid = static_cast<std::uint32_t>(self.pid);
  request.process_start = self.start;
  request.shared_memory = std::ranges::count(options.engine.transports, "shm") > 0;
  request.ended_session = ended_session;
  KVF_ASSIGN_OR_RETURN(auto connection, links.attach(endpoint, NodeId{}, request, deadline));
  std::shared_ptr<Home> home(new Home(std::move(connection)));
  if (home->connection_->attached.page != kNoPage) KVF_RETURN_IF_ERROR(home->map_memory(deadline));
  links.set_home(home->connection_);
  return home;
}

Status Home::map_memory(Deadline deadline) {
  const Attach::Answer& given = connection_->attached;
  const auto map = [&](RegionKey key) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    return connection_->peer->map(key, std::max(left, milliseconds(1)));
  };
  SharedMemory shared;
  KVF_ASSIGN_OR_RETURN(shared.index, map(given.index));
  KVF_ASSIGN_OR_RETURN(shared.pins, map(given.pins));
  for (const RegionKey& key : given.arenas) {
    KVF_ASSIGN_OR_RETURN(const std::span<std::byte> arena, map(key));
    arenas_.emplace(key, static_cast<std::uint32_t>(shared.arenas.size()));
    shared.arenas.push_back(arena);
  }
  KVF_ASSIGN_OR_RETURN(reader_, LocalReader::attach(shared, given.page, given.node));
  return {};
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
    const auto arena = arenas_.find(place.region);
    if (arena == arenas_.end()) return {};
    runs.push_back(reader_->memory({arena->second, place.offset, place.length}));
  }
  return runs;
}

}  // namespace kvferry::store
