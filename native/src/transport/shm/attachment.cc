#include "transport/shm/attachment.h"

#include <string>
#include <utility>
#include <vector>

#include "memory/address_range.h"
#include "transport/shm/foreign_copy.h"
#include "wire/frame.h"
#include "wire/messages.h"

namespace kvferry {
namespace {

Result<Frame> receive(int fd, FrameType wanted, std::size_t descriptors, const Wait& wait) {
  KVF_ASSIGN_OR_RETURN(Frame frame, recv_frame_with_fds(fd, kMaxFdsPerFrame, wait));
  if (frame.header.type == FrameType::kError) return status_of_error_frame(frame.body);
  if (frame.header.type != wanted || frame.fds.size() != descriptors) {
    return {Code::kProtocolError, "got " + std::string(frame_type_name(frame.header.type)) + " with " +
                                      std::to_string(frame.fds.size()) + " descriptors instead of " +
                                      std::string(frame_type_name(wanted)) + " with " + std::to_string(descriptors)};
  }
  return frame;
}

// Reads the owner's secret number out of its memory: shows that copying works and that the pid is the owner's.
Status check_probe(pid_t pid, const RegionDirectoryReader& directory) {
  const DirectoryProbe probe = directory.probe();
  KVF_ASSIGN_OR_RETURN(const std::uint64_t value, ForeignCopy(pid).peek(probe.address));
  if (value == probe.value) return {};
  return {Code::kUnavailable, "process " + std::to_string(pid) + " is not the owner of the shared memory"};
}

}  // namespace

Result<Attachment> Attachment::open(const LocalNode& local, const NodeId& owner, const Endpoint& shm_name,
                                    const Wait& wait) {
  KVF_ASSIGN_OR_RETURN(UniqueFd fd, connect_to(shm_name, wait));
  KVF_ASSIGN_OR_RETURN(const PeerCredentials who, peer_credentials(fd.get()));
  KVF_RETURN_IF_ERROR(check_same_user(fd.get()));
  Channel channel(std::move(fd));
  const auto ack = greet(channel, local, owner, wire::Purpose::kShmAttach, wait);
  if (!ack.ok()) return ack.status();
  fd = channel.take_fd();
  KVF_ASSIGN_OR_RETURN(Frame frame, receive(fd.get(), FrameType::kShmAttached, 2, wait));
  const auto attached = wire::ShmAttached::decode(frame.body);
  if (!attached.ok()) return attached.status();
  KVF_ASSIGN_OR_RETURN(RegionDirectoryReader directory, RegionDirectoryReader::open(std::move(frame.fds[0]), owner));
  KVF_ASSIGN_OR_RETURN(CopyLanes lanes, CopyLanes::map(std::move(frame.fds[1])));
  KVF_RETURN_IF_ERROR(check_probe(who.pid, directory));
  return Attachment(std::move(fd), who.pid, std::move(directory), std::move(lanes));
}

Result<Arena> Attachment::fetch_arena(const DirectoryEntry& entry, const Wait& wait) {
  const wire::ArenaRequest request{entry.arena_index};
  KVF_RETURN_IF_ERROR(send_frame(fd_.get(), FrameType::kArenaRequest, ++last_request_, request.encode(), wait));
  KVF_ASSIGN_OR_RETURN(Frame frame, receive(fd_.get(), FrameType::kArena, 1, wait));
  KVF_ASSIGN_OR_RETURN(const wire::ArenaGrant grant, wire::ArenaGrant::decode(frame.body));
  if (frame.header.request_id != last_request_ || grant.arena_index != entry.arena_index) {
    return {Code::kProtocolError, "the owner granted another arena than the one asked for"};
  }
  return Arena::map(std::move(frame.fds[0]), grant.length, (entry.access & kRemoteWrite) != 0);
}

std::byte* Attachment::mapped_region(RegionKey key) const {
  const auto it = mapped_.find(key);
  return it == mapped_.end() ? nullptr : it->second.region;
}

Result<std::byte*> Attachment::map_region(const DirectoryEntry& entry, const Wait& wait) {
  std::erase_if(mapped_, [&](const auto& mapping) { return !directory_.still_current(mapping.first).ok(); });
  auto arena = fetch_arena(entry, wait);
  if (!arena.ok()) return arena.status().with_context("arena " + std::to_string(entry.arena_index));
  if (!range_fits(entry.arena_offset, entry.length, arena->length())) {
    return {Code::kProtocolError, "a region leaves its arena"};
  }
  std::byte* const region = arena->data() + entry.arena_offset;
  mapped_.insert_or_assign(entry.key, Mapping{std::move(arena).value(), region});
  return region;
}

}  // namespace kvferry
