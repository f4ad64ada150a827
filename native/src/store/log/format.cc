#include "store/log/format.h"

#include <algorithm>
#include <charconv>

#include "base/crc32c.h"

namespace kvferry::store::log {
namespace {

constexpr std::uint64_t kSegmentMagic = 0x0a3147455346564bull;  // "KVFSEG1\n"
constexpr std::uint64_t kGroupMagic = 0x0a3150524746564bull;    // "KVFGRP1\n"
constexpr std::uint64_t kTrailerMagic = 0x0a31444e4546564bull;  // "KVFEND1\n"
constexpr std::size_t kEntryBytes = 68;                         // without key, attributes and sums
constexpr std::string_view kNameBegin = "segment-", kSpareBegin = "spare-", kNameEnd = ".kvf";
constexpr std::size_t kNameDigits = 8;

// Pads to `bytes` with zeros, the last four of which are the sum of what is before.
Bytes seal(ByteWriter writer, std::size_t bytes) {
  while (writer.size() < bytes - sizeof(std::uint32_t)) writer.u8(0);
  Bytes body = writer.take();
  const std::uint32_t sum = crc32c(body);
  ByteWriter whole(std::move(body));
  whole.u32(sum);
  return whole.take();
}

bool sum_is_right(ByteView bytes) {
  const std::size_t body = bytes.size() - sizeof(std::uint32_t);
  ByteReader reader(bytes.subspan(body));
  return reader.u32() == crc32c(bytes.first(body));
}

// That what begins with `magic` is all there and undamaged.
Status check_sealed(ByteView bytes, std::size_t length, std::uint64_t magic, std::string_view what) {
  if (bytes.size() < length) return {Code::kProtocolError, std::string(what) + ": too short"};
  ByteReader reader(bytes);
  if (reader.u64() != magic) return {Code::kProtocolError, std::string(what) + ": not there"};
  if (sum_is_right(bytes.first(length))) return {};
  return {Code::kDataCorrupt, std::string(what) + ": its checksum is wrong"};
}

Status broken(std::string_view what, std::string_view why) {
  return {Code::kProtocolError, std::string(what) + ": " + std::string(why)};
}

Result<std::vector<RecordEntry>> decode_entries(ByteView bytes, std::uint32_t count, std::uint64_t begin,
                                                std::uint64_t end, std::string_view what) {
  if (count > bytes.size() / kEntryBytes) return broken(what, "more records than bytes for them");
  std::vector<RecordEntry> entries;
  entries.reserve(count);
  ByteReader reader(bytes);
  for (std::uint32_t i = 0; i < count && reader.ok(); ++i) {
    entries.push_back(RecordEntry::decode(reader, begin, end));
  }
  KVF_RETURN_IF_ERROR(reader.finish(what));
  return entries;
}

std::string digits_of(std::uint32_t number) {
  std::string digits(kNameDigits, '0');
  for (std::size_t i = 0; i < kNameDigits; ++i) {
    digits[kNameDigits - 1 - i] = "0123456789abcdef"[number >> (4 * i) & 0xf];
  }
  return digits;
}

}  // namespace

Bytes SegmentHeader::encode() const {
  ByteWriter writer(kBytes);
  writer.u64(kSegmentMagic);
  writer.u32(kFormatVersion);
  writer.u32(number);
  writer.u64(salt);
  writer.u64(length);
  writer.u64(erasure_bytes);
  return seal(std::move(writer), kBytes);
}

Result<SegmentHeader> SegmentHeader::decode(ByteView bytes) {
  constexpr std::string_view kWhat = "segment header";
  KVF_RETURN_IF_ERROR(check_sealed(bytes, kBytes, kSegmentMagic, kWhat));
  ByteReader reader(bytes.subspan(sizeof(kSegmentMagic)));
  const std::uint32_t version = reader.u32();
  if (version != kFormatVersion) {
    return {Code::kUnsupported, "segment header: format " + std::to_string(version) + ", this program knows " +
                                    std::to_string(kFormatVersion)};
  }
  SegmentHeader header;
  header.number = reader.u32();
  header.salt = reader.u64();
  header.length = reader.u64();
  header.erasure_bytes = reader.u64();
  const bool sane = header.length <= kMaxSegmentBytes && header.length % kUnit == 0 &&
                    header.erasure_bytes % kUnit == 0 && header.erasure_bytes >= kUnit &&
                    header.erasure_bytes < header.length && header.data_begin() < header.length;
  if (!sane) return broken(kWhat, "impossible lengths");
  const Bytes same = header.encode();  // what is reserved is zero
  if (!std::equal(same.begin(), same.end(), bytes.begin())) return broken(kWhat, "reserved bytes that are not zero");
  return header;
}

Bytes GroupHead::encode() const {
  ByteWriter writer(kBytes);
  writer.u64(kGroupMagic);
  writer.u64(salt);
  writer.u64(offset);
  writer.u64(bytes);
  writer.u64(settled_to);
  writer.u64(first_sequence);
  writer.u32(first_record);
  writer.u32(records);
  writer.u64(index_bytes);
  writer.u32(index_sum);
  return seal(std::move(writer), kBytes);
}

Result<GroupHead> GroupHead::decode(ByteView bytes, std::uint64_t salt, std::uint64_t offset) {
  constexpr std::string_view kWhat = "group head";
  KVF_RETURN_IF_ERROR(check_sealed(bytes, kBytes, kGroupMagic, kWhat));
  ByteReader reader(bytes.subspan(sizeof(kGroupMagic)));
  GroupHead head;
  head.salt = reader.u64();
  head.offset = reader.u64();
  head.bytes = reader.u64();
  head.settled_to = reader.u64();
  head.first_sequence = reader.u64();
  head.first_record = reader.u32();
  head.records = reader.u32();
  head.index_bytes = reader.u64();
  head.index_sum = reader.u32();
  if (head.salt != salt || head.offset != offset) return broken(kWhat, "of another place");
  const bool sane = head.bytes % kUnit == 0 && head.bytes <= kMaxSegmentBytes && head.bytes > kBytes &&
                    head.index_bytes <= head.bytes - kBytes && head.settled_to <= offset && head.records > 0 &&
                    head.records <= kMaxGroupRecords && head.first_record <= UINT32_MAX - head.records;
  if (!sane) return broken(kWhat, "impossible numbers");
  return head;
}

std::uint64_t RecordEntry::encoded_bytes(std::size_t key, std::size_t attributes, std::uint64_t payload) {
  return kEntryBytes + key + attributes + chunks_of(payload) * sizeof(std::uint32_t);
}

void RecordEntry::encode(ByteWriter& writer) const {
  writer.u32(record);
  writer.u64(id.hi);
  writer.u64(id.lo);
  writer.u64(sequence);
  writer.u64(digest.hi);
  writer.u64(digest.lo);
  writer.u64(offset);
  writer.u64(bytes);
  writer.text16(key);
  writer.text16(attributes);
  writer.u32(static_cast<std::uint32_t>(sums.size()));
  for (const std::uint32_t sum : sums) writer.u32(sum);
}

RecordEntry RecordEntry::decode(ByteReader& reader, std::uint64_t begin, std::uint64_t end) {
  RecordEntry entry;
  entry.record = reader.u32();
  entry.id.hi = reader.u64();
  entry.id.lo = reader.u64();
  entry.sequence = reader.u64();
  entry.digest.hi = reader.u64();
  entry.digest.lo = reader.u64();
  entry.offset = reader.u64();
  entry.bytes = reader.u64();
  entry.key = reader.text16(kMaxKeyBytes);
  entry.attributes = reader.text16(kMaxAttributeBytes);
  const std::uint64_t sums = reader.u32();
  if (entry.offset < begin || entry.offset > end || entry.bytes > end - entry.offset) {
    reader.fail("a payload lies outside");
  }
  if (!reader.ok()) return entry;
  if (sums != chunks_of(entry.bytes) || sums > reader.remaining() / sizeof(std::uint32_t)) {
    reader.fail("checksums are missing");
    return entry;
  }
  entry.sums.resize(static_cast<std::size_t>(sums));
  for (std::uint32_t& sum : entry.sums) sum = reader.u32();
  return entry;
}

Bytes Trailer::encode() const {
  ByteWriter writer(kBytes);
  writer.u64(kTrailerMagic);
  writer.u64(salt);
  writer.u64(footer_offset);
  writer.u64(footer_bytes);
  writer.u32(entries);
  writer.u32(footer_sum);
  writer.u32(next_record);
  return seal(std::move(writer), kBytes);
}

Result<Trailer> Trailer::decode(ByteView bytes, const SegmentHeader& header, std::uint64_t file_bytes) {
  constexpr std::string_view kWhat = "trailer";
  KVF_RETURN_IF_ERROR(check_sealed(bytes, kBytes, kTrailerMagic, kWhat));
  ByteReader reader(bytes.subspan(sizeof(kTrailerMagic)));
  Trailer trailer;
  trailer.salt = reader.u64();
  trailer.footer_offset = reader.u64();
  trailer.footer_bytes = reader.u64();
  trailer.entries = reader.u32();
  trailer.footer_sum = reader.u32();
  trailer.next_record = reader.u32();
  if (trailer.salt != header.salt) return broken(kWhat, "of another file");
  const bool sane = trailer.footer_offset % kUnit == 0 && trailer.footer_offset >= header.data_begin() &&
                    trailer.footer_offset <= file_bytes && file_bytes - trailer.footer_offset >= kBytes &&
                    trailer.footer_bytes <= file_bytes - trailer.footer_offset - kBytes;
  if (!sane) return broken(kWhat, "impossible numbers");
  return trailer;
}

Result<std::vector<RecordEntry>> decode_group(const GroupHead& head, ByteView index) {
  constexpr std::string_view kWhat = "group";
  if (index.size() != head.index_bytes) return broken(kWhat, "too short");
  if (crc32c(index) != head.index_sum) return {Code::kDataCorrupt, "group: its checksum is wrong"};
  const std::uint64_t begin = head.offset + GroupHead::kBytes + head.index_bytes;
  KVF_ASSIGN_OR_RETURN(std::vector<RecordEntry> entries,
                       decode_entries(index, head.records, begin, head.offset + head.bytes, kWhat));
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].record != head.first_record + i) return broken(kWhat, "records out of order");
  }
  return entries;
}

Result<std::vector<RecordEntry>> decode_footer(const Trailer& trailer, std::uint64_t data_begin, ByteView footer) {
  constexpr std::string_view kWhat = "footer";
  if (footer.size() != trailer.footer_bytes) return broken(kWhat, "too short");
  if (crc32c(footer) != trailer.footer_sum) return {Code::kDataCorrupt, "footer: its checksum is wrong"};
  KVF_ASSIGN_OR_RETURN(std::vector<RecordEntry> entries,
                       decode_entries(footer, trailer.entries, data_begin, trailer.footer_offset, kWhat));
  // They come in the order in which their groups were complete.
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.record < b.record; });
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const bool twice = i > 0 && entries[i].record == entries[i - 1].record;
    if (twice || entries[i].record >= trailer.next_record) return broken(kWhat, "impossible record numbers");
  }
  return entries;
}

std::string segment_name(std::uint32_t number) {
  return std::string(kNameBegin) + digits_of(number) + std::string(kNameEnd);
}

std::string spare_name(std::uint32_t number) {
  return std::string(kSpareBegin) + digits_of(number) + std::string(kNameEnd);
}

bool is_spare_name(std::string_view name) {
  std::uint32_t number = 0;
  if (!name.starts_with(kSpareBegin)) return false;
  return parse_segment_name(std::string(kNameBegin) + std::string(name.substr(kSpareBegin.size())), &number);
}

bool parse_segment_name(std::string_view name, std::uint32_t* number) {
  if (name.size() != kNameBegin.size() + kNameDigits + kNameEnd.size()) return false;
  if (!name.starts_with(kNameBegin) || !name.ends_with(kNameEnd)) return false;
  const std::string_view digits = name.substr(kNameBegin.size(), kNameDigits);
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), *number, 16);
  return parsed.ec == std::errc() && segment_name(*number) == name;
}

}  // namespace kvferry::store::log
