// What the log's files look like; docs/disk-format.md has it byte by byte. Pure encoders and bounded decoders: whatever
// the bytes are, a decoder returns a value that keeps the format's promises or a status. Little-endian.
//
//   segment file = header unit | erasure units | groups ... | footer (only once sealed; then it ends the file)
//   group        = head, record entries, packed payloads, padding | aligned payloads, each padded to whole units
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "kvferry/object_id.h"
#include "kvferry/status.h"
#include "kvferry/store.h"

namespace kvferry::store::log {

inline constexpr std::uint32_t kFormatVersion = 1;
inline constexpr std::uint64_t kUnit = 4096;            // files are read and written in multiples of it
inline constexpr std::uint64_t kChunkBytes = 64 << 10;  // of a payload, each with a checksum of its own
inline constexpr std::size_t kMaxAttributeBytes = 8192;
inline constexpr std::uint32_t kMaxGroupRecords = 4096;
inline constexpr std::uint64_t kMaxSegmentBytes = 1ull << 44;

constexpr std::uint64_t whole_units(std::uint64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }
constexpr std::uint64_t chunks_of(std::uint64_t bytes) { return (bytes + kChunkBytes - 1) / kChunkBytes; }

struct SegmentHeader {
  static constexpr std::size_t kBytes = 64;
  std::uint32_t number = 0;
  std::uint64_t salt = 0;           // random: no group of another file is taken for one of this
  std::uint64_t length = 0;         // what the file was made with
  std::uint64_t erasure_bytes = 0;  // after the header unit
  std::uint64_t data_begin() const { return kUnit + erasure_bytes; }

  Bytes encode() const;  // kBytes
  // kProtocolError: not ours; kDataCorrupt: ours, but damaged; kUnsupported: of another version. `bytes`: the first
  // unit.
  static Result<SegmentHeader> decode(ByteView bytes);
};

struct GroupHead {
  static constexpr std::size_t kBytes = 72;
  std::uint64_t salt = 0;
  std::uint64_t offset = 0;      // its own, in the file
  std::uint64_t bytes = 0;       // of the whole group
  std::uint64_t settled_to = 0;  // what lies before was complete when this was written
  std::uint64_t first_sequence = 0;
  std::uint32_t first_record = 0;
  std::uint32_t records = 0;
  std::uint64_t index_bytes = 0;  // of the entries, which follow the head
  std::uint32_t index_sum = 0;    // CRC-32C over them

  Bytes encode() const;
  static Result<GroupHead> decode(ByteView bytes, std::uint64_t salt, std::uint64_t offset);
};

struct RecordEntry {
  std::uint32_t record = 0;  // its number in the segment
  ObjectId id;
  std::uint64_t sequence = 0;  // of two records of one object the one with the larger one counts
  ContentDigest digest;
  std::uint64_t offset = 0;  // of the payload, in the file
  std::uint64_t bytes = 0;
  std::string key;
  std::string attributes;
  std::vector<std::uint32_t> sums;  // CRC-32C of each chunk of the payload

  static std::uint64_t encoded_bytes(std::size_t key, std::size_t attributes, std::uint64_t payload);
  void encode(ByteWriter& writer) const;
  // Makes the reader failed unless the payload lies within [begin, end).
  static RecordEntry decode(ByteReader& reader, std::uint64_t begin, std::uint64_t end);
};

struct Trailer {  // the last bytes of a sealed file
  static constexpr std::size_t kBytes = 64;
  std::uint64_t salt = 0;
  std::uint64_t footer_offset = 0;  // entries of the records that were live when it was sealed
  std::uint64_t footer_bytes = 0;
  std::uint32_t entries = 0;
  std::uint32_t footer_sum = 0;
  std::uint32_t next_record = 0;  // larger than any record's number in this segment

  Bytes encode() const;
  static Result<Trailer> decode(ByteView bytes, const SegmentHeader& header, std::uint64_t file_bytes);
};

// The entries of a group: `index` holds exactly them. kDataCorrupt if the sum is wrong, kProtocolError if they are no
// entries of that group.
Result<std::vector<RecordEntry>> decode_group(const GroupHead& head, ByteView index);
// Those of a footer, in the order of their numbers; `data_begin` is the first byte that a payload can have.
Result<std::vector<RecordEntry>> decode_footer(const Trailer& trailer, std::uint64_t data_begin, ByteView footer);

// "segment-00000001.kvf", and back; false if the name is no segment's. Spare files have names of the same kind.
std::string segment_name(std::uint32_t number);
std::string spare_name(std::uint32_t number);
bool is_spare_name(std::string_view name);
bool parse_segment_name(std::string_view name, std::uint32_t* number);

}  // namespace kvferry::store::log
