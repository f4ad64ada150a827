// Session messages: handshake, errors, region lists, shared memory. Data requests are in data_messages.cc.
#include "wire/messages.h"

#include "base/limits.h"
#include "wire/fields.h"

namespace kvferry::wire {
namespace {

void put_host(ByteWriter& writer, const HostId& host) {
  writer.raw(as_byte_view(host.boot_id));
  writer.u64(host.net_namespace);
  writer.u64(host.pid_namespace);
}

HostId get_host(ByteReader& reader) {
  HostId host;
  host.boot_id = reader.array<16>();
  host.net_namespace = reader.u64();
  host.pid_namespace = reader.u64();
  return host;
}

NodeId get_node(ByteReader& reader) { return {reader.array<16>()}; }

NodeId get_named_node(ByteReader& reader) {
  const NodeId node = get_node(reader);
  if (reader.ok() && node.is_nil()) reader.fail("the sender's node id is nil");
  return node;
}

bool get_bool(ByteReader& reader) {
  const std::uint8_t value = reader.u8();
  if (value > 1) reader.fail("a yes/no field is " + std::to_string(value));
  return value == 1;
}

Purpose get_purpose(ByteReader& reader) {
  const std::uint8_t value = reader.u8();
  if (value < 1 || value > 3) reader.fail("unknown purpose " + std::to_string(value));
  return static_cast<Purpose>(value);
}

void put_rails(ByteWriter& writer, const std::vector<RailAddress>& rails) {
  writer.u32(static_cast<std::uint32_t>(rails.size()));
  for (const RailAddress& rail : rails) {
    writer.u32(rail.speed_mbit);
    writer.text8(rail.endpoint);
  }
}

std::vector<RailAddress> get_rails(ByteReader& reader) {
  constexpr std::size_t kSmallestRailBytes = 6;
  std::vector<RailAddress> rails(get_count(reader, kMaxRails, kSmallestRailBytes));
  for (RailAddress& rail : rails) {
    rail.speed_mbit = reader.u32();
    rail.endpoint = reader.text8(kMaxRailEndpointBytes);
    if (reader.ok() && rail.endpoint.empty()) reader.fail("a rail without an address");
  }
  return rails;
}

void put_region(ByteWriter& writer, const RegionInfo& region) {
  writer.u32(region.key.id);
  writer.u32(region.key.generation);
  writer.u64(region.length);
  writer.u8(static_cast<std::uint8_t>(region.kind));
  writer.u8(region.access);
  writer.text8(region.name);
}

RegionInfo get_region(ByteReader& reader) {
  RegionInfo region;
  region.key.id = reader.u32();
  region.key.generation = reader.u32();
  region.length = reader.u64();
  const std::uint8_t kind = reader.u8();
  region.access = reader.u8();
  region.name = reader.text8(kMaxRegionNameBytes);
  if (!reader.ok()) return region;
  if (kind > static_cast<std::uint8_t>(MemoryKind::kDax)) reader.fail("unknown memory kind " + std::to_string(kind));
  if ((region.access & ~(kRemoteRead | kRemoteWrite)) != 0) reader.fail("unknown access bits");
  if (region.key.id == 0 || region.key.id > kMaxRegions || region.key.generation == 0) reader.fail("bad region key");
  if (region.length == 0) reader.fail("a region of no bytes");
  region.kind = static_cast<MemoryKind>(kind);
  return region;
}

}  // namespace

Bytes Hello::encode() const {
  ByteWriter writer(256);
  writer.u8(min_version);
  writer.u8(max_version);
  writer.u8(static_cast<std::uint8_t>(purpose));
  writer.u8(has_secret ? 1 : 0);
  writer.raw(as_byte_view(self.bytes));
  writer.raw(as_byte_view(expected.bytes));
  put_host(writer, host);
  writer.raw(as_byte_view(nonce));
  writer.text8(endpoint);
  writer.text8(shm_name);
  put_rails(writer, rails);
  return writer.take();
}

Result<Hello> Hello::decode(ByteView body) {
  ByteReader reader(body);
  Hello out;
  out.min_version = reader.u8();
  out.max_version = reader.u8();
  if (out.min_version == 0 || out.min_version > out.max_version) reader.fail("an empty range of versions");
  out.purpose = get_purpose(reader);
  out.has_secret = get_bool(reader);
  out.self = get_named_node(reader);
  out.expected = get_node(reader);
  out.host = get_host(reader);
  out.nonce = reader.array<32>();
  out.endpoint = reader.text8(kMaxEndpointBytes);
  out.shm_name = reader.text8(kMaxEndpointBytes);
  out.rails = get_rails(reader);
  KVF_RETURN_IF_ERROR(reader.finish("HELLO"));
  return out;
}

Bytes HelloAck::encode() const {
  ByteWriter writer(256);
  writer.u8(version);
  writer.u8(has_secret ? 1 : 0);
  writer.u16(0);
  writer.raw(as_byte_view(self.bytes));
  put_host(writer, host);
  writer.raw(as_byte_view(nonce));
  writer.text8(endpoint);
  writer.text8(shm_name);
  put_rails(writer, rails);
  writer.raw(as_byte_view(proof));
  return writer.take();
}

Result<HelloAck> HelloAck::decode(ByteView body) {
  ByteReader reader(body);
  HelloAck out;
  out.version = reader.u8();
  out.has_secret = get_bool(reader);
  reader.reserved(2);
  out.self = get_named_node(reader);
  out.host = get_host(reader);
  out.nonce = reader.array<32>();
  out.endpoint = reader.text8(kMaxEndpointBytes);
  out.shm_name = reader.text8(kMaxEndpointBytes);
  out.rails = get_rails(reader);
  out.proof = reader.array<32>();
  KVF_RETURN_IF_ERROR(reader.finish("HELLO_ACK"));
  return out;
}

Bytes Auth::encode() const {
  ByteWriter writer(proof.size());
  writer.raw(as_byte_view(proof));
  return writer.take();
}

Result<Auth> Auth::decode(ByteView body) {
  ByteReader reader(body);
  const Auth out{reader.array<32>()};
  KVF_RETURN_IF_ERROR(reader.finish("AUTH"));
  return out;
}

Bytes Error::encode() const {
  ByteWriter writer(message.size() + 8);
  put_code(writer, code);
  writer.u8(0);
  writer.text16(std::string_view(message).substr(0, kMaxErrorTextBytes));
  return writer.take();
}

Result<Error> Error::decode(ByteView body) {
  ByteReader reader(body);
  Error out;
  out.code = get_code(reader);
  if (reader.ok() && out.code == Code::kOk) reader.fail("an error that is none");
  reader.reserved(1);
  out.message = reader.text16(kMaxErrorTextBytes);
  KVF_RETURN_IF_ERROR(reader.finish("ERROR"));
  return out;
}

Bytes Regions::encode() const {
  ByteWriter writer(metadata.size() + 64 * regions.size() + 8);
  writer.text32(metadata);
  writer.u32(static_cast<std::uint32_t>(regions.size()));
  for (const RegionInfo& region : regions) put_region(writer, region);
  return writer.take();
}

Result<Regions> Regions::decode(ByteView body) {
  constexpr std::size_t kSmallestRegionBytes = 19;
  ByteReader reader(body);
  Regions out;
  out.metadata = reader.text32(kMaxMetadataBytes);
  const std::size_t count = get_count(reader, kMaxRegions, kSmallestRegionBytes);
  out.regions.reserve(count);
  for (std::size_t i = 0; i < count && reader.ok(); ++i) out.regions.push_back(get_region(reader));
  KVF_RETURN_IF_ERROR(reader.finish("REGIONS"));
  for (std::size_t i = 1; i < out.regions.size(); ++i) {
    if (out.regions[i - 1].key.id >= out.regions[i].key.id) {
      return {Code::kProtocolError, "REGIONS: ids do not ascend"};
    }
  }
  return out;
}

Bytes Goodbye::encode() const {
  ByteWriter writer(reason.size() + 2);
  writer.text16(std::string_view(reason).substr(0, kMaxErrorTextBytes));
  return writer.take();
}

Result<Goodbye> Goodbye::decode(ByteView body) {
  ByteReader reader(body);
  Goodbye out{reader.text16(kMaxErrorTextBytes)};
  KVF_RETURN_IF_ERROR(reader.finish("GOODBYE"));
  return out;
}

Bytes ShmAttached::encode() const {
  ByteWriter writer(8);
  writer.u32(lanes);
  writer.u32(0);
  return writer.take();
}

Result<ShmAttached> ShmAttached::decode(ByteView body) {
  ByteReader reader(body);
  const ShmAttached out{reader.u32()};
  if (reader.ok() && (out.lanes == 0 || out.lanes > kMaxAttachLanes)) reader.fail("a senseless number of lanes");
  reader.reserved(4);
  KVF_RETURN_IF_ERROR(reader.finish("SHM_ATTACHED"));
  return out;
}

Bytes ArenaRequest::encode() const {
  ByteWriter writer(8);
  writer.u32(arena_index);
  writer.u32(0);
  return writer.take();
}

Result<ArenaRequest> ArenaRequest::decode(ByteView body) {
  ByteReader reader(body);
  const ArenaRequest out{get_arena_index(reader)};
  reader.reserved(4);
  KVF_RETURN_IF_ERROR(reader.finish("ARENA_REQUEST"));
  return out;
}

Bytes ArenaGrant::encode() const {
  ByteWriter writer(16);
  writer.u32(arena_index);
  writer.u32(0);
  writer.u64(length);
  return writer.take();
}

Result<ArenaGrant> ArenaGrant::decode(ByteView body) {
  ByteReader reader(body);
  ArenaGrant out;
  out.arena_index = get_arena_index(reader);
  reader.reserved(4);
  out.length = reader.u64();
  if (reader.ok() && out.length == 0) reader.fail("an arena of no bytes");
  KVF_RETURN_IF_ERROR(reader.finish("ARENA"));
  return out;
}

}  // namespace kvferry::wire
