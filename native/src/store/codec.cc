#include "store/codec.h"

#include "base/deadline.h"
#include "base/limits.h"
#include "wire/fields.h"

namespace kvferry::store {
namespace {

constexpr std::size_t kMaxHostBytes = 255, kMaxNameBytes = 255, kMaxTextBytes = 1024;
constexpr std::size_t kMaxTags = 16, kMaxTagBytes = 255, kMaxCounters = 1024, kMaxReasons = 256;

template <typename Codec, typename Tags>
void tag_fields(Codec& codec, Tags& tags) {
  codec.field(tags);
}

template <typename Codec, typename Object>
void object_fields(Codec& codec, Object& object) {
  codec.field(object.id);
  codec.text(object.key, kMaxKeyBytes);
  codec.text(object.tenant, kMaxTenantBytes);
  codec.all(object.bytes, object.replicas);
  codec.maybe(object.expires_in);
  tag_fields(codec, object.tags);
  codec.all(object.parent, object.depth, object.extra);
}

template <typename Codec, typename Info>
void info_fields(Codec& codec, Info& info) {
  codec.text(info.key, kMaxKeyBytes);
  codec.text(info.tenant, kMaxTenantBytes);
  codec.all(info.bytes, info.digest, info.tier, info.replicas);
  tag_fields(codec, info.tags);
  codec.maybe(info.expires_in);
}

template <typename Codec, typename Stats>
void stats_fields(Codec& codec, Stats& stats) {
  codec.all(stats.objects, stats.dram_objects, stats.ssd_objects, stats.dram_bytes, stats.dram_used,
            stats.dram_largest_free, stats.pinned_objects, stats.ssd_bytes, stats.ssd_used, stats.ssd_written,
            stats.ssd_stored, stats.directory_entries, stats.clients, stats.index_bytes, stats.metadata_bytes,
            stats.counters, stats.degraded);
}

}  // namespace

void Encoder::value(ByteView bytes) {
  writer_.u32(static_cast<std::uint32_t>(bytes.size()));
  writer_.raw(bytes);
}

void Encoder::field(const Status& status) {
  wire::put_code(writer_, status.code());
  text(status.ok() ? std::string_view() : status.message(), kMaxTextBytes);
}

void Encoder::field(const std::map<std::string, std::uint64_t>& numbers) {
  writer_.u32(static_cast<std::uint32_t>(numbers.size()));
  for (const auto& [name, number] : numbers) {
    text(name, kMaxNameBytes);
    field(number);
  }
}

void Encoder::field(const std::vector<std::string>& texts) {
  writer_.u32(static_cast<std::uint32_t>(texts.size()));
  for (const std::string& one : texts) text(one, kMaxTagBytes);
}

void Encoder::field(const NewObject& object) { object_fields(*this, object); }

void Encoder::field(const Member& member) {
  field(member.node_id);
  text(member.endpoint.to_string(), kMaxEndpointBytes);
  text(member.host, kMaxHostBytes);
  field(member.dram_bytes);
}

void Encoder::field(const ObjectInfo& info) { info_fields(*this, info); }
void Encoder::field(const NodeStats& stats) { stats_fields(*this, stats); }

void Decoder::value(ByteView& bytes) {
  const std::uint32_t length = reader_.u32();
  bytes = reader_.raw(length);
}

void Decoder::field(bool& flag) {
  const std::uint8_t number = reader_.u8();
  if (number > 1) reader_.fail("a yes/no field is " + std::to_string(number));
  flag = number == 1;
}

void Decoder::field(milliseconds& time) {
  const std::uint64_t count = reader_.u64();
  if (count > static_cast<std::uint64_t>(kLongestWait.count())) reader_.fail("a time of more than a year");
  time = reader_.ok() ? milliseconds(static_cast<milliseconds::rep>(count)) : milliseconds(0);
}

void Decoder::field(Status& status) {
  const Code code = wire::get_code(reader_);
  std::string why = reader_.text16(kMaxTextBytes);
  if (reader_.ok() && code == Code::kOk && !why.empty()) reader_.fail("a reason for success");
  status = Status(code, std::move(why));
}

void Decoder::field(std::map<std::string, std::uint64_t>& numbers) {
  const std::size_t count = wire::get_count(reader_, kMaxCounters, 10);
  for (std::size_t i = 0; i < count && reader_.ok(); ++i) {
    std::string name = reader_.text16(kMaxNameBytes);
    const std::uint64_t number = reader_.u64();
    if (reader_.ok() && !numbers.empty() && name <= numbers.rbegin()->first) reader_.fail("names do not ascend");
    numbers.emplace(std::move(name), number);
  }
}

void Decoder::field(std::vector<std::string>& texts) {
  const std::size_t count = wire::get_count(reader_, kMaxReasons, 2);
  for (std::size_t i = 0; i < count && reader_.ok(); ++i) texts.push_back(reader_.text16(kMaxTagBytes));
}

void Decoder::field(NewObject& object) {
  object_fields(*this, object);
  if (object.tags.size() > kMaxTags) reader_.fail("more than 16 tags");
}

void Decoder::field(Member& member) {
  field(member.node_id);
  std::string endpoint, host;
  text(endpoint, kMaxEndpointBytes);
  text(member.host, kMaxHostBytes);
  field(member.dram_bytes);
  if (!reader_.ok()) return;
  auto parsed = Endpoint::parse(endpoint);
  if (!parsed.ok()) return reader_.fail("a member's address: " + parsed.status().message());
  if (parsed->to_string() != endpoint) return reader_.fail("a member's address is not in its usual form");
  if (member.node_id.is_nil()) return reader_.fail("a member's node id is nil");
  member.endpoint = *std::move(parsed);
}

void Decoder::field(ObjectInfo& info) { info_fields(*this, info); }
void Decoder::field(NodeStats& stats) { stats_fields(*this, stats); }

}  // namespace kvferry::store
