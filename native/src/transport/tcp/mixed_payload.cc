#include "transport/tcp/mixed_payload.h"

#include <sys/uio.h>

#include "base/crc32c.h"

namespace kvferry {

void MixedPayload::clear() {
  groups_.clear();
  has_device_memory_ = false;
}

void MixedPayload::add(std::byte* data, std::uint64_t length, MemoryPlace place) {
  if (groups_.empty() || groups_.back().place != place) groups_.push_back({place, {}});
  groups_.back().parts.push_back({data, length});
  has_device_memory_ = has_device_memory_ || place.is_device();
}

void MixedPayload::put_segments(const Group& group) {
  for (const Staging::Part& part : group.parts) segments_.push_back({part.data, part.length});
}

Status MixedPayload::send(Channel& channel, Bytes& head, const Wait& wait, const std::atomic<bool>& cancelled) {
  const GatePass pass(wait.gate);  // a device's copies, once started, end by themselves only
  if (!pass.inside()) return gate_closed();
  segments_.assign(1, {head.data(), head.size()});
  for (const Group& group : groups_) {
    if (!group.place.is_device()) {
      put_segments(group);
      continue;
    }
    const auto send_chunk = [&](std::span<const std::byte> bytes) {
      segments_.push_back({const_cast<std::byte*>(bytes.data()), bytes.size()});  // NOLINT: iovec has no const
      const Status sent = channel.send_vectored(segments_, wait);
      segments_.clear();
      return sent;
    };
    KVF_RETURN_IF_ERROR(staging_.out(group.place, group.parts, {wait.deadline, cancelled}, send_chunk));
  }
  return segments_.empty() ? Status() : channel.send_vectored(segments_, wait);
}

Status MixedPayload::receive(FrameReader& reader, const Wait& wait, const std::atomic<bool>& cancelled) {
  const GatePass pass(wait.gate);  // as in send()
  if (!pass.inside()) return gate_closed();
  for (const Group& group : groups_) {
    segments_.clear();
    if (!group.place.is_device()) {
      put_segments(group);
      KVF_RETURN_IF_ERROR(reader.payload(&segments_, wait));
      continue;
    }
    const auto fill_chunk = [&](std::span<std::byte> room) {
      segments_.assign(1, {room.data(), room.size()});
      return reader.payload(&segments_, wait);
    };
    KVF_RETURN_IF_ERROR(staging_.in(group.place, group.parts, {wait.deadline, cancelled}, fill_chunk));
  }
  return {};
}

Result<std::uint32_t> MixedPayload::checksum(std::byte* data, std::uint64_t length, MemoryPlace place, const Wait& wait,
                                             const std::atomic<bool>& cancelled) {
  if (!place.is_device()) return crc32c({data, length});
  std::uint32_t sum = 0;
  const Staging::Part part{data, length};
  const auto add_chunk = [&](std::span<const std::byte> bytes) {
    sum = crc32c(bytes, sum);
    return Status();
  };
  KVF_RETURN_IF_ERROR(staging_.out(place, {&part, 1}, {wait.deadline, cancelled}, add_chunk));
  return sum;
}

}  // namespace kvferry
