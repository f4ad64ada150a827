#include "wire/messages.h"

#include <gtest/gtest.h>

#include "base/limits.h"
#include "wire/frame.h"

namespace kvferry::wire {
namespace {

NodeId node(std::uint8_t fill) {
  NodeId id;
  id.bytes.fill(fill);
  return id;
}

HostId host() {
  HostId out;
  out.boot_id.fill(9);
  out.net_namespace = 4026531840;
  out.pid_namespace = 4026531836;
  return out;
}

Hello hello() {
  Hello out;
  out.max_version = 3;
  out.purpose = Purpose::kShmAttach;
  out.has_secret = true;
  out.self = node(1);
  out.expected = node(2);
  out.host = host();
  out.nonce.fill(0xaa);
  out.endpoint = "[fe80::1%eth0]:4000";
  out.shm_name = "unix:@kvferry-x";
  out.rails = {{"10.0.0.1:4001", 100000}, {"[fe80::2%eth1]:4002", 0}};
  return out;
}

HelloAck hello_ack() {
  HelloAck out;
  out.has_secret = true;
  out.self = node(2);
  out.host = host();
  out.nonce.fill(0xbb);
  out.endpoint = "127.0.0.1:1";
  out.rails = {{"10.0.0.2:5001", 25000}};
  out.proof.fill(0xcc);
  return out;
}

RegionInfo region(std::uint32_t id) {
  return {{id, 3}, 1u << 20, MemoryKind::kHost, kRemoteRead | kRemoteWrite, "layer." + std::to_string(id)};
}

// Write::decode has one more parameter than the others.
struct WriteWithChecksums : Write {
  static Result<WriteWithChecksums> decode(ByteView body) {
    KVF_ASSIGN_OR_RETURN(Write out, Write::decode(body, true));
    return WriteWithChecksums{std::move(out)};
  }
};
struct WriteWithout : Write {
  static Result<WriteWithout> decode(ByteView body) {
    KVF_ASSIGN_OR_RETURN(Write out, Write::decode(body, false));
    return WriteWithout{std::move(out)};
  }
};

// What every message must do: come back equal; be refused when cut anywhere, or when a byte follows.
template <typename Message>
void expect_strict(const Message& message, FrameType type) {
  const Bytes body = message.encode();
  EXPECT_LE(body.size(), max_body_bytes(type)) << frame_type_name(type);
  const auto back = Message::decode(body);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(*back, message) << frame_type_name(type);
  for (std::size_t length = 0; length < body.size(); ++length) {
    EXPECT_EQ(Message::decode(ByteView(body).first(length)).status().code(), Code::kProtocolError)
        << frame_type_name(type) << " cut to " << length;
  }
  Bytes longer = body;
  longer.push_back(std::byte{0});
  EXPECT_EQ(Message::decode(longer).status().code(), Code::kProtocolError) << frame_type_name(type) << " too long";
}

template <typename Message>
Code decode_with(const Message& message, std::size_t offset, int value) {
  Bytes body = message.encode();
  body.at(offset) = static_cast<std::byte>(value);
  return Message::decode(body).status().code();
}

TEST(Messages, AllRoundTripAndAreStrict) {
  expect_strict(hello(), FrameType::kHello);
  expect_strict(hello_ack(), FrameType::kHelloAck);
  expect_strict(Auth{{1, 2, 3}}, FrameType::kAuth);
  expect_strict(Error{Code::kStale, "region 3 was replaced"}, FrameType::kError);
  expect_strict(Regions{std::string("meta\0data", 9), {region(1), region(7)}}, FrameType::kRegions);
  expect_strict(Regions{}, FrameType::kRegions);
  expect_strict(Goodbye{"closing"}, FrameType::kGoodbye);
  expect_strict(Read{{{{1, 2}, 3, 4}, {{5, 6}, UINT64_MAX, 8}}}, FrameType::kRead);
  expect_strict(ReadData{4096, {{Code::kOk, 0xdeadbeef}, {Code::kStale, 0}}}, FrameType::kReadData);
  expect_strict(WriteWithChecksums{{{{{1, 2}, 3, 4}, {{5, 6}, 7, 8}}, {0x11, 0x22}}}, FrameType::kWrite);
  expect_strict(WriteWithout{{{{{1, 2}, 3, 4}}, {}}}, FrameType::kWrite);
  expect_strict(WriteAck{{Code::kOk, Code::kPermissionDenied}}, FrameType::kWriteAck);
  expect_strict(ReadData{4096, {}}, FrameType::kReadData);
  expect_strict(WriteAck{}, FrameType::kWriteAck);
  expect_strict(Read{{{{1, 2}, 3, 4}}, kMaxListSlots}, FrameType::kRead);
  expect_strict(Read{{}, 1}, FrameType::kRead);
  expect_strict(WriteWithout{{{{{1, 2}, 3, 4}}, {}, 7}}, FrameType::kWrite);
  expect_strict(ShmAttached{4}, FrameType::kShmAttached);
  expect_strict(ArenaRequest{kMaxArenas}, FrameType::kArenaRequest);
  expect_strict(ArenaGrant{1, 1u << 30}, FrameType::kArena);
}

TEST(Messages, LargestOnesFitTheirCaps) {
  Hello largest = hello();
  largest.endpoint.assign(kMaxEndpointBytes, 'e');
  largest.shm_name.assign(kMaxEndpointBytes, 's');
  largest.rails.assign(kMaxRails, {std::string(kMaxRailEndpointBytes, 'r'), 1});
  EXPECT_LE(largest.encode().size(), max_body_bytes(FrameType::kHello));
  EXPECT_TRUE(Hello::decode(largest.encode()).ok());

  Regions regions{std::string(kMaxMetadataBytes, 'm'), {}};
  for (std::uint32_t id = 1; id <= kMaxRegions; ++id) {
    regions.regions.push_back(region(id));
    regions.regions.back().name.assign(kMaxRegionNameBytes, 'n');
  }
  EXPECT_LE(regions.encode().size(), max_body_bytes(FrameType::kRegions));
  EXPECT_EQ(*Regions::decode(regions.encode()), regions);

  const std::vector<PieceDescriptor> pieces(kMaxPiecesPerRequest, {{1, 1}, 0, 1});
  EXPECT_EQ(Read{pieces}.encode().size(), max_body_bytes(FrameType::kRead));
  const Write write{pieces, std::vector<std::uint32_t>(pieces.size())};
  EXPECT_EQ(write.encode().size(), max_body_bytes(FrameType::kWrite));
  EXPECT_TRUE(Write::decode(write.encode(), true).ok());
}

TEST(Messages, PieceDescriptorHas24Bytes) {
  const Read one{{{{0x04030201, 0x08070605}, 0x100f0e0d0c0b0a09, 0x18}}};
  const Bytes body = one.encode();
  ASSERT_EQ(body.size(), 8 + 24U);
  for (std::size_t i = 0; i < 17; ++i) EXPECT_EQ(static_cast<std::size_t>(body[8 + i]), i == 16 ? 0x18 : i + 1);
}

TEST(Hello, BadFieldsAreRefused) {
  EXPECT_EQ(decode_with(hello(), 0, 0), Code::kProtocolError) << "version 0";
  EXPECT_EQ(decode_with(hello(), 0, 4), Code::kProtocolError) << "empty range";
  EXPECT_EQ(decode_with(hello(), 2, 0), Code::kProtocolError) << "purpose";
  EXPECT_EQ(decode_with(hello(), 2, 4), Code::kProtocolError) << "purpose";
  EXPECT_EQ(decode_with(hello(), 3, 2), Code::kProtocolError) << "boolean";
  Hello nameless = hello();
  nameless.self = {};
  EXPECT_EQ(Hello::decode(nameless.encode()).status().code(), Code::kProtocolError);
  Hello anyone = hello();
  anyone.expected = {};
  EXPECT_TRUE(Hello::decode(anyone.encode()).ok());
}

TEST(Hello, TooManyTooLongOrNamelessRailsAreRefused) {
  Hello many = hello();
  many.rails.assign(kMaxRails + 1, {"10.0.0.1:1", 1});
  EXPECT_EQ(Hello::decode(many.encode()).status().code(), Code::kProtocolError);
  HelloAck odd = hello_ack();
  for (const std::string& text : {std::string(), std::string(kMaxRailEndpointBytes + 1, 'r')}) {
    odd.rails = {{text, 1}};
    EXPECT_EQ(HelloAck::decode(odd.encode()).status().code(), Code::kProtocolError) << text.size();
  }
}

TEST(Error, LongTextIsCutAndOkIsNoError) {
  const Error parsed = *Error::decode(Error{Code::kInternal, std::string(5000, 'x')}.encode());
  EXPECT_EQ(parsed.message.size(), kMaxErrorTextBytes);
  EXPECT_EQ(decode_with(Error{Code::kStale, "x"}, 0, 0), Code::kProtocolError);
  EXPECT_EQ(decode_with(Error{Code::kStale, "x"}, 0, 200), Code::kProtocolError) << "unknown code";
  EXPECT_EQ(decode_with(Error{Code::kStale, "x"}, 1, 1), Code::kProtocolError) << "reserved";
}

TEST(Regions, BadEntriesAreRefused) {
  const Regions one{"", {region(1)}};
  EXPECT_EQ(decode_with(one, 8, 0), Code::kProtocolError) << "id 0";
  EXPECT_EQ(decode_with(one, 9, 0xff), Code::kProtocolError) << "id beyond the table";
  EXPECT_EQ(decode_with(one, 12, 0), Code::kProtocolError) << "generation 0";
  EXPECT_EQ(decode_with(one, 24, 6), Code::kProtocolError) << "memory kind";
  EXPECT_EQ(decode_with(one, 25, 4), Code::kProtocolError) << "access";
  EXPECT_EQ(Regions::decode(Regions{"", {region(2), region(1)}}.encode()).status().code(), Code::kProtocolError);
  EXPECT_EQ(Regions::decode(Regions{"", {region(2), region(2)}}.encode()).status().code(), Code::kProtocolError);
  RegionInfo empty = region(1);
  empty.length = 0;
  EXPECT_EQ(Regions::decode(Regions{"", {empty}}.encode()).status().code(), Code::kProtocolError);
  EXPECT_EQ(Regions::decode(Regions{std::string(kMaxMetadataBytes + 1, 'm'), {}}.encode()).status().code(),
            Code::kProtocolError);
}

TEST(Regions, CountThatTheBodyCannotHoldIsRefused) {
  EXPECT_EQ(decode_with(Regions{"", {region(1)}}, 5, 1), Code::kProtocolError);
}

TEST(Read, EmptyOverfullOrOversizedRequestsAreRefused) {
  const PieceDescriptor byte{{1, 1}, 0, 1};
  EXPECT_EQ(Read::decode(Read{}.encode()).status().code(), Code::kProtocolError);
  EXPECT_EQ(Read::decode(Read{{byte}, kMaxListSlots + 1}.encode()).status().code(), Code::kProtocolError);
  EXPECT_TRUE(Write::decode(Write{{}, {5, 6}, 1}.encode(), true).ok()) << "of a list that the owner knows";
  EXPECT_EQ(Write::decode(Write{{}, {}, 1}.encode(), true).status().code(), Code::kProtocolError);
  EXPECT_EQ(Read::decode(Read{std::vector(kMaxPiecesPerRequest + 1, byte)}.encode()).status().code(),
            Code::kProtocolError);
  EXPECT_EQ(Read::decode(Read{{{{1, 1}, 0, 0}}}.encode()).status().code(), Code::kProtocolError);
  const PieceDescriptor all{{1, 1}, 0, kMaxRequestPayloadBytes};
  EXPECT_EQ(payload_bytes(Read::decode(Read{{all}}.encode())->pieces), kMaxRequestPayloadBytes);
  EXPECT_EQ(Read::decode(Read{{all, byte}}.encode()).status().code(), Code::kProtocolError);
  const PieceDescriptor huge{{1, 1}, 0, UINT64_MAX};
  EXPECT_EQ(Read::decode(Read{{huge}}.encode()).status().code(), Code::kProtocolError);
  EXPECT_EQ(Read::decode(Read{{byte, huge}}.encode()).status().code(), Code::kProtocolError) << "the sum wraps";
}

TEST(Write, ChecksumsMustMatchTheFlag) {
  const Write with{{{{1, 1}, 0, 1}}, {5}};
  const Write without{{{{1, 1}, 0, 1}}, {}};
  EXPECT_EQ(Write::decode(with.encode(), false).status().code(), Code::kProtocolError);
  EXPECT_EQ(Write::decode(without.encode(), true).status().code(), Code::kProtocolError);
}

TEST(Results, UnknownCodesAndCountsAreRefused) {
  EXPECT_EQ(decode_with(WriteAck{{Code::kOk}}, 8, 200), Code::kProtocolError);
  EXPECT_EQ(decode_with(ReadData{1, {{Code::kOk, 0}}}, 16, 200), Code::kProtocolError);
  EXPECT_EQ(decode_with(ReadData{1, {{Code::kOk, 0}}}, 17, 1), Code::kProtocolError) << "reserved";
  EXPECT_EQ(decode_with(ReadData{1, {{Code::kOk, 0}}}, 7, 1), Code::kProtocolError) << "payload";
}

TEST(Shm, SenselessNumbersAreRefused) {
  EXPECT_EQ(ShmAttached::decode(ShmAttached{0}.encode()).status().code(), Code::kProtocolError);
  EXPECT_EQ(ShmAttached::decode(ShmAttached{kMaxAttachLanes + 1}.encode()).status().code(), Code::kProtocolError);
  EXPECT_EQ(ArenaRequest::decode(ArenaRequest{0}.encode()).status().code(), Code::kProtocolError);
  EXPECT_EQ(ArenaRequest::decode(ArenaRequest{kMaxArenas + 1}.encode()).status().code(), Code::kProtocolError);
  EXPECT_EQ(ArenaGrant::decode(ArenaGrant{1, 0}.encode()).status().code(), Code::kProtocolError);
}

}  // namespace
}  // namespace kvferry::wire
