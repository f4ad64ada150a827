// READ, READ_DATA, WRITE, WRITE_ACK. write_to() and parse() work in memory that is used again: the data path does not
// allocate.
#include "base/limits.h"
#include "wire/fields.h"
#include "wire/messages.h"

namespace kvferry::wire {
namespace {

void get_piece(ByteReader& reader, PieceDescriptor* piece) {
  piece->region.id = reader.u32();
  piece->region.generation = reader.u32();
  piece->offset = reader.u64();
  piece->length = reader.u64();
  if (piece->length == 0) reader.fail("a piece of no bytes");
}

// `tail_bytes` per piece come after the pieces. No pieces: those of the slot are meant.
void get_pieces(ByteReader& reader, std::size_t tail_bytes, std::vector<PieceDescriptor>* pieces, std::uint32_t* slot) {
  pieces->clear();
  const std::size_t count = get_count(reader, kMaxPiecesPerRequest, 1);
  *slot = reader.u32();
  if (*slot > kMaxListSlots) reader.fail("there is no list slot " + std::to_string(*slot));
  if (reader.ok() && count == 0 && *slot == 0) reader.fail("no pieces");
  if (reader.ok() && count > 0 && reader.remaining() != count * (kPieceBytes + tail_bytes)) {
    reader.fail("the count does not fit the body");
  }
  if (!reader.ok()) return;
  pieces->resize(count);
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < count && reader.ok(); ++i) {
    PieceDescriptor& piece = (*pieces)[i];
    get_piece(reader, &piece);
    if (piece.length > kMaxRequestPayloadBytes - total) reader.fail("more payload than one request may have");
    total += piece.length;
  }
}

}  // namespace

std::uint64_t payload_bytes(const std::vector<PieceDescriptor>& pieces) {
  std::uint64_t total = 0;
  for (const PieceDescriptor& piece : pieces) total += piece.length;
  return total;
}

void put_request(ByteWriter& writer, std::span<const PieceDescriptor> pieces, std::uint32_t slot,
                 std::span<const std::uint32_t> crc32c) {
  writer.u32(static_cast<std::uint32_t>(pieces.size()));
  writer.u32(slot);
  for (const PieceDescriptor& piece : pieces) {
    writer.u32(piece.region.id);
    writer.u32(piece.region.generation);
    writer.u64(piece.offset);
    writer.u64(piece.length);
  }
  for (const std::uint32_t crc : crc32c) writer.u32(crc);
}

void Read::write_to(ByteWriter& writer) const { put_request(writer, pieces, slot); }

Status Read::parse(ByteView body) {
  ByteReader reader(body);
  get_pieces(reader, 0, &pieces, &slot);
  return reader.finish("READ");
}

void ReadData::write_to(ByteWriter& writer) const {
  writer.u64(payload_bytes);
  writer.u32(static_cast<std::uint32_t>(results.size()));
  writer.u32(0);
  for (const PieceResult& result : results) {
    put_code(writer, result.code);
    writer.u8(0);
    writer.u16(0);
    writer.u32(result.crc32c);
  }
}

Status ReadData::parse(ByteView body) {
  ByteReader reader(body);
  payload_bytes = reader.u64();
  if (payload_bytes > kMaxRequestPayloadBytes) reader.fail("more payload than one request may have");
  const std::size_t count = get_count(reader, kMaxPiecesPerRequest, 8);
  reader.reserved(4);
  results.clear();
  for (std::size_t i = 0; i < count && reader.ok(); ++i) {
    PieceResult& result = results.emplace_back();
    result.code = get_code(reader);
    reader.reserved(3);
    result.crc32c = reader.u32();
  }
  return reader.finish("READ_DATA");
}

void Write::write_to(ByteWriter& writer) const { put_request(writer, pieces, slot, crc32c); }

Status Write::parse(ByteView body, bool has_checksums) {
  ByteReader reader(body);
  get_pieces(reader, has_checksums ? 4 : 0, &pieces, &slot);
  crc32c.clear();
  if (!has_checksums) return reader.finish("WRITE");
  const std::size_t count = reader.remaining() / 4;
  if (count == 0 || count > kMaxPiecesPerRequest) reader.fail("an impossible number of checksums");
  for (std::size_t i = 0; i < count && reader.ok(); ++i) crc32c.push_back(reader.u32());
  return reader.finish("WRITE");
}

void WriteAck::write_to(ByteWriter& writer) const {
  writer.u32(static_cast<std::uint32_t>(results.size()));
  writer.u32(0);
  for (const Code code : results) put_code(writer, code);
}

Status WriteAck::parse(ByteView body) {
  ByteReader reader(body);
  const std::size_t count = get_count(reader, kMaxPiecesPerRequest, 1);
  reader.reserved(4);
  results.clear();
  for (std::size_t i = 0; i < count && reader.ok(); ++i) results.push_back(get_code(reader));
  return reader.finish("WRITE_ACK");
}

}  // namespace kvferry::wire
