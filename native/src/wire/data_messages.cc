// READ, READ_DATA, WRITE, WRITE_ACK.
#include "base/limits.h"
#include "wire/fields.h"
#include "wire/messages.h"

namespace kvferry::wire {
namespace {

void put_pieces(ByteWriter& writer, const std::vector<PieceDescriptor>& pieces) {
  writer.u32(static_cast<std::uint32_t>(pieces.size()));
  writer.u32(0);
  for (const PieceDescriptor& piece : pieces) {
    writer.u32(piece.region.id);
    writer.u32(piece.region.generation);
    writer.u64(piece.offset);
    writer.u64(piece.length);
  }
}

PieceDescriptor get_piece(ByteReader& reader) {
  PieceDescriptor piece;
  piece.region.id = reader.u32();
  piece.region.generation = reader.u32();
  piece.offset = reader.u64();
  piece.length = reader.u64();
  if (reader.ok() && piece.length == 0) reader.fail("a piece of no bytes");
  return piece;
}

std::vector<PieceDescriptor> get_pieces(ByteReader& reader, std::size_t bytes_per_piece) {
  std::vector<PieceDescriptor> pieces;
  const std::size_t count = get_count(reader, kMaxPiecesPerRequest, 1);
  reader.reserved(4);
  if (reader.ok() && count == 0) reader.fail("no pieces");
  if (reader.ok() && reader.remaining() != count * bytes_per_piece) reader.fail("the count does not fit the body");
  if (!reader.ok()) return pieces;
  pieces.reserve(count);
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < count && reader.ok(); ++i) {
    pieces.push_back(get_piece(reader));
    const std::uint64_t length = pieces.back().length;
    if (length > kMaxRequestPayloadBytes - total) reader.fail("more payload than one request may have");
    total += length;
  }
  return pieces;
}

}  // namespace

std::uint64_t payload_bytes(const std::vector<PieceDescriptor>& pieces) {
  std::uint64_t total = 0;
  for (const PieceDescriptor& piece : pieces) total += piece.length;
  return total;
}

Bytes Read::encode() const {
  ByteWriter writer(8 + kPieceBytes * pieces.size());
  put_pieces(writer, pieces);
  return writer.take();
}

Result<Read> Read::decode(ByteView body) {
  ByteReader reader(body);
  Read out{get_pieces(reader, kPieceBytes)};
  KVF_RETURN_IF_ERROR(reader.finish("READ"));
  return out;
}

Bytes ReadData::encode() const {
  ByteWriter writer(16 + 8 * results.size());
  writer.u64(payload_bytes);
  writer.u32(static_cast<std::uint32_t>(results.size()));
  writer.u32(0);
  for (const PieceResult& result : results) {
    put_code(writer, result.code);
    writer.u8(0);
    writer.u16(0);
    writer.u32(result.crc32c);
  }
  return writer.take();
}

Result<ReadData> ReadData::decode(ByteView body) {
  ByteReader reader(body);
  ReadData out;
  out.payload_bytes = reader.u64();
  if (out.payload_bytes > kMaxRequestPayloadBytes) reader.fail("more payload than one request may have");
  const std::size_t count = get_count(reader, kMaxPiecesPerRequest, 8);
  reader.reserved(4);
  if (reader.ok() && count == 0) reader.fail("no results");
  out.results.reserve(count);
  for (std::size_t i = 0; i < count && reader.ok(); ++i) {
    PieceResult result;
    result.code = get_code(reader);
    reader.reserved(3);
    result.crc32c = reader.u32();
    out.results.push_back(result);
  }
  KVF_RETURN_IF_ERROR(reader.finish("READ_DATA"));
  return out;
}

Bytes Write::encode() const {
  ByteWriter writer(8 + (kPieceBytes + 4) * pieces.size());
  put_pieces(writer, pieces);
  for (const std::uint32_t crc : crc32c) writer.u32(crc);
  return writer.take();
}

Result<Write> Write::decode(ByteView body, bool has_checksums) {
  ByteReader reader(body);
  Write out;
  out.pieces = get_pieces(reader, kPieceBytes + (has_checksums ? 4 : 0));
  const std::size_t checksums = has_checksums ? out.pieces.size() : 0;
  out.crc32c.reserve(checksums);
  for (std::size_t i = 0; i < checksums; ++i) out.crc32c.push_back(reader.u32());
  KVF_RETURN_IF_ERROR(reader.finish("WRITE"));
  return out;
}

Bytes WriteAck::encode() const {
  ByteWriter writer(8 + results.size());
  writer.u32(static_cast<std::uint32_t>(results.size()));
  writer.u32(0);
  for (const Code code : results) put_code(writer, code);
  return writer.take();
}

Result<WriteAck> WriteAck::decode(ByteView body) {
  ByteReader reader(body);
  WriteAck out;
  const std::size_t count = get_count(reader, kMaxPiecesPerRequest, 1);
  reader.reserved(4);
  if (reader.ok() && count == 0) reader.fail("no results");
  out.results.reserve(count);
  for (std::size_t i = 0; i < count && reader.ok(); ++i) out.results.push_back(get_code(reader));
  KVF_RETURN_IF_ERROR(reader.finish("WRITE_ACK"));
  return out;
}

}  // namespace kvferry::wire
