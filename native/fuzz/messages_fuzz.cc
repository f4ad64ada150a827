// Every message decoder. The first byte chooses the type. The format is canonical: what is accepted encodes back to the
// same bytes.
#include <algorithm>

#include "base/limits.h"
#include "fuzz_input.h"
#include "wire/frame.h"
#include "wire/messages.h"

using namespace kvferry;

namespace {

template <typename Message>
void check(const Result<Message>& decoded, ByteView body) {
  if (!decoded.ok()) {
    fuzz::require(decoded.status().code() == Code::kProtocolError);
    return;
  }
  fuzz::require(std::ranges::equal(decoded->encode(), body));
}

void check_pieces(const std::vector<wire::PieceDescriptor>& pieces, std::uint32_t slot) {
  fuzz::require(slot <= kMaxListSlots && pieces.size() <= kMaxPiecesPerRequest && (!pieces.empty() || slot != 0));
  fuzz::require(wire::payload_bytes(pieces) <= kMaxRequestPayloadBytes);
}

void check_read(ByteView body) {
  const auto read = wire::Read::decode(body);
  check(read, body);
  if (read.ok()) check_pieces(read->pieces, read->slot);
}

void check_write(ByteView body, bool has_checksums) {
  const auto write = wire::Write::decode(body, has_checksums);
  check(write, body);
  if (!write.ok()) return;
  check_pieces(write->pieces, write->slot);
  fuzz::require(has_checksums ? write->pieces.empty() || write->crc32c.size() == write->pieces.size()
                              : write->crc32c.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteView body = fuzz::view(data + 1, size - 1);
  switch (static_cast<FrameType>(data[0] & 0x7f)) {
    case FrameType::kHello:
      check(wire::Hello::decode(body), body);
      break;
    case FrameType::kHelloAck:
      check(wire::HelloAck::decode(body), body);
      break;
    case FrameType::kAuth:
      check(wire::Auth::decode(body), body);
      break;
    case FrameType::kError:
      check(wire::Error::decode(body), body);
      break;
    case FrameType::kRegions:
      check(wire::Regions::decode(body), body);
      break;
    case FrameType::kGoodbye:
      check(wire::Goodbye::decode(body), body);
      break;
    case FrameType::kRead:
      check_read(body);
      break;
    case FrameType::kReadData:
      check(wire::ReadData::decode(body), body);
      break;
    case FrameType::kWrite:
      check_write(body, (data[0] & 0x80) != 0);
      break;
    case FrameType::kWriteAck:
      check(wire::WriteAck::decode(body), body);
      break;
    case FrameType::kShmAttached:
      check(wire::ShmAttached::decode(body), body);
      break;
    case FrameType::kArenaRequest:
      check(wire::ArenaRequest::decode(body), body);
      break;
    case FrameType::kArena:
      check(wire::ArenaGrant::decode(body), body);
      break;
    default:
      break;
  }
  return 0;
}
