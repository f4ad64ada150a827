#include "wire/frame.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/crc32c.h"
#include "wire/messages.h"

namespace kvferry {
namespace {

struct TypeTraits {
  std::string_view name;
  std::size_t max_body_bytes = 0;
  std::uint16_t flags = 0;  // those that mean something
};

constexpr std::size_t kMaxTextBody = kMaxErrorTextBytes + 16;

// By type number; 0 is no type.
constexpr std::array<TypeTraits, 20> kTypes{{
    {"UNKNOWN"},
    {"HELLO", kMaxHelloBytes},
    {"HELLO_ACK", kMaxHelloBytes},
    {"AUTH", 32},
    {"ERROR", kMaxTextBody},
    {"REGIONS_REQUEST"},
    {"REGIONS", kMaxBodyBytes},
    {"MESSAGE", kMaxMessageBytes},
    {"PING"},
    {"PONG"},
    {"GOODBYE", kMaxTextBody},
    {"READ", 8 + wire::kPieceBytes* kMaxPiecesPerRequest, kFlagChecksum | kFlagForgetLists},
    {"READ_DATA", 16 + std::size_t{8} * kMaxPiecesPerRequest, kFlagChecksum},
    {"WRITE", 8 + (wire::kPieceBytes + 4) * kMaxPiecesPerRequest, kFlagChecksum | kFlagForgetLists},
    {"WRITE_ACK", 8 + std::size_t{kMaxPiecesPerRequest}},
    {"SHM_ATTACHED", 16},
    {"ARENA_REQUEST", 16},
    {"ARENA", 16},
    {"FENCE"},
    {"FENCED"},
}};
static_assert(kTypes.size() == static_cast<std::size_t>(FrameType::kFenced) + 1);

const TypeTraits& traits(FrameType type) {
  const auto index = static_cast<std::size_t>(type);
  return index < kTypes.size() ? kTypes[index] : kTypes[0];
}

Status malformed(const std::string& why) { return {Code::kProtocolError, "frame header: " + why}; }

// One receive path for both kinds of socket: `header_fds` came with the header.
Result<Frame> recv_body(int fd, const FrameHeader& header, std::vector<UniqueFd> header_fds, const Wait& wait) {
  Frame frame{header, Bytes(header.body_bytes), std::move(header_fds)};
  if (const Status got = recv_exact(fd, frame.body, wait); !got.ok()) {
    return got.with_context(std::string(frame_type_name(header.type)) + " body");
  }
  KVF_RETURN_IF_ERROR(header.check_body(frame.body));
  return frame;
}

}  // namespace

std::string_view frame_type_name(FrameType type) { return traits(type).name; }
std::size_t max_body_bytes(FrameType type) { return traits(type).max_body_bytes; }

std::array<std::byte, kFrameHeaderBytes> FrameHeader::encode() const {
  std::array<std::byte, kFrameHeaderBytes> out{};
  const auto put = [&out](std::size_t at, auto value) {
    const auto wire = little_endian(value);
    std::memcpy(out.data() + at, &wire, sizeof(wire));
  };
  put(0, kFrameMagic);
  put(4, kWireVersion);
  put(5, static_cast<std::uint8_t>(type));
  put(6, flags);
  put(8, body_bytes);
  put(12, body_crc32c);
  put(16, request_id);
  return out;
}

Result<FrameHeader> FrameHeader::decode(std::span<const std::byte, kFrameHeaderBytes> bytes, std::size_t max_body) {
  ByteReader reader(bytes);
  if (reader.u32() != kFrameMagic) return malformed("no KVFerry magic; the peer speaks something else");
  if (const auto version = reader.u8(); version != kWireVersion) {
    return malformed("wire version " + std::to_string(version) + ", this build speaks " + std::to_string(kWireVersion));
  }
  const std::uint8_t type = reader.u8();
  if (type == 0 || type >= kTypes.size()) return malformed("unknown type " + std::to_string(type));
  FrameHeader header;
  header.type = static_cast<FrameType>(type);
  header.flags = reader.u16();
  header.body_bytes = reader.u32();
  header.body_crc32c = reader.u32();
  header.request_id = reader.u64();
  if ((header.flags & ~traits(header.type).flags) != 0) {
    return malformed("unknown flags for " + std::string(frame_type_name(header.type)));
  }
  if (header.body_bytes > max_body_bytes(header.type)) {
    return malformed(std::string(frame_type_name(header.type)) + " body of " + std::to_string(header.body_bytes) +
                     " bytes; at most " + std::to_string(max_body_bytes(header.type)) + " are allowed");
  }
  if (header.body_bytes > max_body) return malformed(std::string(frame_type_name(header.type)) + " is too long here");
  return header;
}

Status FrameHeader::check_body(ByteView body) const {
  if (body.size() != body_bytes) {
    return {Code::kProtocolError, std::string(frame_type_name(type)) + " body of " + std::to_string(body.size()) +
                                      " bytes; the header says " + std::to_string(body_bytes)};
  }
  if (crc32c(body) != body_crc32c)
    return {Code::kDataCorrupt, std::string(frame_type_name(type)) + " body does not match its checksum"};
  return {};
}

FrameHeader frame_header(FrameType type, std::uint64_t request_id, ByteView body, std::uint16_t flags) {
  return {type, flags, static_cast<std::uint32_t>(body.size()), crc32c(body), request_id};
}

Bytes encode_frame(FrameType type, std::uint64_t request_id, ByteView body, std::uint16_t flags) {
  const auto header = frame_header(type, request_id, body, flags).encode();
  Bytes out(header.size() + body.size());
  std::ranges::copy(body, std::ranges::copy(header, out.begin()).out);
  return out;
}

ByteWriter begin_frame(Bytes&& reuse) {
  reuse.resize(kFrameHeaderBytes);
  return ByteWriter(std::move(reuse));
}

Bytes end_frame(ByteWriter&& writer, FrameType type, std::uint64_t request_id, std::uint16_t flags) {
  Bytes frame = writer.take();
  std::ranges::copy(frame_header(type, request_id, ByteView(frame).subspan(kFrameHeaderBytes), flags).encode(),
                    frame.begin());
  return frame;
}

Status send_frame(int fd, FrameType type, std::uint64_t request_id, ByteView body, const Wait& wait,
                  std::uint16_t flags) {
  auto header = frame_header(type, request_id, body, flags).encode();
  std::array<iovec, 2> segments{iovec{header.data(), header.size()},
                                iovec{const_cast<std::byte*>(body.data()), body.size()}};
  return send_vectored(fd, segments, wait);
}

Result<Frame> recv_frame(int fd, const Wait& wait, std::size_t max_body) {
  std::array<std::byte, kFrameHeaderBytes> bytes{};
  KVF_RETURN_IF_ERROR(recv_exact(fd, bytes, wait));
  KVF_ASSIGN_OR_RETURN(const FrameHeader header, FrameHeader::decode(bytes, max_body));
  return recv_body(fd, header, {}, wait);
}

Status send_frame_with_fds(int fd, FrameType type, std::uint64_t request_id, ByteView body, std::span<const int> fds,
                           const Wait& wait) {
  return send_with_fds(fd, encode_frame(type, request_id, body), fds, wait);
}

Result<Frame> recv_frame_with_fds(int fd, std::size_t max_fds, const Wait& wait) {
  std::array<std::byte, kFrameHeaderBytes> bytes{};
  KVF_ASSIGN_OR_RETURN(auto fds, recv_with_fds(fd, bytes, max_fds, wait));
  KVF_ASSIGN_OR_RETURN(const FrameHeader header, FrameHeader::decode(bytes));
  return recv_body(fd, header, std::move(fds), wait);
}

}  // namespace kvferry
