// Every message body of wire version 1. encode() gives the body; decode() is strict: caps, known enum values, reserved
// bytes zero, nothing left over; else kProtocolError. Values only, no behaviour.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/host_id.h"
#include "base/sha256.h"
#include "kvferry/node_id.h"
#include "kvferry/status.h"
#include "kvferry/types.h"

namespace kvferry::wire {

enum class Purpose : std::uint8_t { kControl = 1, kTcpData = 2, kShmAttach = 3 };
using Nonce = std::array<std::uint8_t, 32>;

struct RailAddress {  // an address of the sender that data connections may go to
  std::string endpoint;
  std::uint32_t speed_mbit = 0;  // of its interface; 0: unknown
  bool operator==(const RailAddress&) const = default;
};

struct Hello {  // initiator -> acceptor, first frame
  std::uint8_t min_version = 1;
  std::uint8_t max_version = 1;
  Purpose purpose = Purpose::kControl;
  bool has_secret = false;
  NodeId self;
  NodeId expected;  // nil: whoever answers
  HostId host;
  Nonce nonce{};
  std::string endpoint;            // where the initiator can be reached, "" if nowhere
  std::string shm_name;            // its same-host listener, "" if none
  std::vector<RailAddress> rails;  // at most kMaxRails; none: data goes to `endpoint`
  bool operator==(const Hello&) const = default;
  Bytes encode() const;
  static Result<Hello> decode(ByteView body);
};

struct HelloAck {            // acceptor -> initiator
  std::uint8_t version = 1;  // the highest that both know
  bool has_secret = false;
  NodeId self;
  HostId host;
  Nonce nonce{};
  std::string endpoint;
  std::string shm_name;
  std::vector<RailAddress> rails;  // as in Hello
  Digest proof{};                  // the last 32 bytes of the body; zeros without a secret
  bool operator==(const HelloAck&) const = default;
  Bytes encode() const;
  static Result<HelloAck> decode(ByteView body);
};

struct Auth {  // initiator -> acceptor, always sent; zeros without a secret
  Digest proof{};
  bool operator==(const Auth&) const = default;
  Bytes encode() const;
  static Result<Auth> decode(ByteView body);
};

struct Error {  // about the request of the header's id, or about the connection when that is 0
  Code code = Code::kInternal;
  std::string message;  // cut to kMaxErrorTextBytes
  bool operator==(const Error&) const = default;
  Bytes encode() const;
  static Result<Error> decode(ByteView body);
};

struct Regions {  // answer to REGIONS_REQUEST (which has no body), and pushed once after the handshake
  std::string metadata;
  std::vector<RegionInfo> regions;
  bool operator==(const Regions&) const = default;
  Bytes encode() const;
  static Result<Regions> decode(ByteView body);
};

struct Goodbye {
  std::string reason;
  bool operator==(const Goodbye&) const = default;
  Bytes encode() const;
  static Result<Goodbye> decode(ByteView body);
};

inline constexpr std::size_t kPieceBytes = 24;
struct PieceDescriptor {
  RegionKey region;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;  // never 0
  bool operator==(const PieceDescriptor&) const = default;
};

// Sum of lengths. decode() has checked that it does not pass kMaxRequestPayloadBytes.
std::uint64_t payload_bytes(const std::vector<PieceDescriptor>& pieces);

// Data messages are written to and parsed in memory that is used again; encode() and decode() are for everybody else.
template <typename Message>
struct DataMessage {
  Bytes encode() const {
    ByteWriter writer;
    static_cast<const Message*>(this)->write_to(writer);
    return writer.take();
  }
  template <typename... Form>
  static Result<Message> decode(ByteView body, Form... form) {
    Message out;
    KVF_RETURN_IF_ERROR(out.parse(body, form...));
    return out;
  }
  bool operator==(const DataMessage&) const = default;
};

// A list of pieces may be given a slot, the first free one of 1..kMaxListSlots, where the owner of the memory keeps it
// until kFlagForgetLists or the end of the connection; a later request with the slot and no pieces means the same
// pieces. 0: nothing is to be kept.
struct Read : DataMessage<Read> {
  Read() = default;
  explicit Read(std::vector<PieceDescriptor> list, std::uint32_t list_slot = 0)
      : pieces(std::move(list)), slot(list_slot) {}
  std::vector<PieceDescriptor> pieces;  // at most kMaxPiecesPerRequest; none: those of the slot
  std::uint32_t slot = 0;
  bool operator==(const Read&) const = default;
  void write_to(ByteWriter& writer) const;
  Status parse(ByteView body);
};

// The body of READ, and with checksums that of WRITE.
void put_request(ByteWriter& writer, std::span<const PieceDescriptor> pieces, std::uint32_t slot,
                 std::span<const std::uint32_t> crc32c = {});

struct PieceResult {
  Code code = Code::kOk;
  std::uint32_t crc32c = 0;  // of the piece's bytes if the frame has kFlagChecksum, else 0
  bool operator==(const PieceResult&) const = default;
};

struct ReadData : DataMessage<ReadData> {  // followed by the bytes of the pieces whose code is kOk, in order
  ReadData() = default;
  ReadData(std::uint64_t payload, std::vector<PieceResult> list) : payload_bytes(payload), results(std::move(list)) {}
  std::uint64_t payload_bytes = 0;
  std::vector<PieceResult> results;  // none: all pieces are there, without checksums
  bool operator==(const ReadData&) const = default;
  void write_to(ByteWriter& writer) const;
  Status parse(ByteView body);
};

struct Write : DataMessage<Write> {  // followed by the bytes of all pieces, in order
  Write() = default;
  Write(std::vector<PieceDescriptor> list, std::vector<std::uint32_t> checksums, std::uint32_t list_slot = 0)
      : pieces(std::move(list)), slot(list_slot), crc32c(std::move(checksums)) {}
  std::vector<PieceDescriptor> pieces;  // as in Read
  std::uint32_t slot = 0;
  std::vector<std::uint32_t> crc32c;  // one per piece, or none (the header's kFlagChecksum says which)
  bool operator==(const Write&) const = default;
  void write_to(ByteWriter& writer) const;
  Status parse(ByteView body, bool has_checksums);
};

struct WriteAck : DataMessage<WriteAck> {  // the pieces with kOk are visible in the owner's memory
  WriteAck() = default;
  explicit WriteAck(std::vector<Code> codes) : results(std::move(codes)) {}
  std::vector<Code> results;  // none: all pieces are kOk
  bool operator==(const WriteAck&) const = default;
  void write_to(ByteWriter& writer) const;
  Status parse(ByteView body);
};

struct ShmAttached {        // acceptor -> initiator, with two descriptors: region directory, copy lanes
  std::uint32_t lanes = 0;  // how many copying threads the attachment may use
  bool operator==(const ShmAttached&) const = default;
  Bytes encode() const;
  static Result<ShmAttached> decode(ByteView body);
};

struct ArenaRequest {
  std::uint32_t arena_index = 0;
  bool operator==(const ArenaRequest&) const = default;
  Bytes encode() const;
  static Result<ArenaRequest> decode(ByteView body);
};

struct ArenaGrant {  // with one descriptor
  std::uint32_t arena_index = 0;
  std::uint64_t length = 0;
  bool operator==(const ArenaGrant&) const = default;
  Bytes encode() const;
  static Result<ArenaGrant> decode(ByteView body);
};

}  // namespace kvferry::wire
