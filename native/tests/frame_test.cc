#include "wire/frame.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>

#include "base/crc32c.h"
#include "base/deadline.h"

namespace kvferry {
namespace {

Wait soon() { return {deadline_in(milliseconds(20000)), nullptr}; }

struct SocketPair {
  SocketPair() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    a.reset(fds[0]);
    b.reset(fds[1]);
  }
  UniqueFd a, b;
};

std::array<std::byte, kFrameHeaderBytes> good_header() {
  return FrameHeader{FrameType::kRead, kFlagChecksum, 32, 0x01020304, 0x1122334455667788}.encode();
}

Status decode_with(std::size_t offset, int value) {
  auto bytes = good_header();
  bytes[offset] = static_cast<std::byte>(value);
  return FrameHeader::decode(bytes).status();
}

TEST(FrameHeader, BytesAreThoseOfTheDocument) {
  const std::uint8_t expected[kFrameHeaderBytes] = {'K', 'V', 'F', '1', 1,    11,   1,    0,    32,   0,    0,    0,
                                                    4,   3,   2,   1,   0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11};
  EXPECT_TRUE(std::ranges::equal(good_header(), std::as_bytes(std::span(expected))));
}

TEST(FrameHeader, RoundTrips) {
  const auto header = FrameHeader::decode(good_header());
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->type, FrameType::kRead);
  EXPECT_EQ(header->flags, kFlagChecksum);
  EXPECT_EQ(header->body_bytes, 32U);
  EXPECT_EQ(header->body_crc32c, 0x01020304U);
  EXPECT_EQ(header->request_id, 0x1122334455667788U);
}

TEST(FrameHeader, MalformedFieldsAreRefused) {
  EXPECT_NE(decode_with(0, 'G').message().find("speaks something else"), std::string::npos);
  EXPECT_NE(decode_with(4, 2).message().find("wire version 2, this build speaks 1"), std::string::npos);
  EXPECT_EQ(decode_with(5, 0).code(), Code::kProtocolError);
  EXPECT_EQ(decode_with(5, static_cast<int>(FrameType::kFenced) + 1).code(), Code::kProtocolError);
  EXPECT_EQ(decode_with(6, 4).code(), Code::kProtocolError);
  EXPECT_EQ(decode_with(7, 1).code(), Code::kProtocolError);
  EXPECT_EQ(decode_with(11, 0x7f).code(), Code::kProtocolError);
}

TEST(FrameHeader, FlagsAreOnlyAllowedWhereTheyMeanSomething) {
  EXPECT_EQ(FrameHeader::decode(FrameHeader{FrameType::kPing, kFlagChecksum, 0, 0, 0}.encode()).status().code(),
            Code::kProtocolError);
}

TEST(FrameHeader, EveryTypeHasANameAndABodyCapThatFitsTheGlobalOne) {
  for (int type = 1; type <= static_cast<int>(FrameType::kFenced); ++type) {
    const auto known = static_cast<FrameType>(type);
    EXPECT_NE(frame_type_name(known), "UNKNOWN") << type;
    EXPECT_LE(max_body_bytes(known), kMaxBodyBytes);
    const auto cap = static_cast<std::uint32_t>(max_body_bytes(known));
    EXPECT_TRUE(FrameHeader::decode(FrameHeader{known, 0, cap, 0, 0}.encode()).ok()) << type;
    EXPECT_FALSE(FrameHeader::decode(FrameHeader{known, 0, cap + 1, 0, 0}.encode()).ok()) << type;
  }
}

TEST(Frame, TravelsWholeOverASocket) {
  SocketPair pair;
  const Bytes body(kMaxMessageBytes, std::byte{7});
  std::jthread sender([&] { EXPECT_TRUE(send_frame(pair.a.get(), FrameType::kMessage, 42, body, soon()).ok()); });
  const auto frame = recv_frame(pair.b.get(), soon());
  ASSERT_TRUE(frame.ok()) << frame.status().to_string();
  EXPECT_EQ(frame->header.type, FrameType::kMessage);
  EXPECT_EQ(frame->header.request_id, 42U);
  EXPECT_EQ(frame->body, body);
}

TEST(Frame, EmptyBodyIsAFrameToo) {
  SocketPair pair;
  ASSERT_TRUE(send_frame(pair.a.get(), FrameType::kPing, 1, {}, soon()).ok());
  ASSERT_TRUE(send_frame(pair.a.get(), FrameType::kPong, 2, {}, soon()).ok());
  EXPECT_EQ(recv_frame(pair.b.get(), soon())->header.type, FrameType::kPing);
  EXPECT_EQ(recv_frame(pair.b.get(), soon())->header.request_id, 2U);
}

TEST(Frame, DamagedBodyIsFound) {
  SocketPair pair;
  Bytes bytes = encode_frame(FrameType::kMessage, 1, as_byte_view("hello"));
  bytes.back() ^= std::byte{1};
  ASSERT_TRUE(send_all(pair.a.get(), bytes, soon()).ok());
  EXPECT_EQ(recv_frame(pair.b.get(), soon()).status().code(), Code::kDataCorrupt);
}

TEST(Frame, CutBodyIsAPeerLost) {
  SocketPair pair;
  const Bytes bytes = encode_frame(FrameType::kMessage, 1, as_byte_view("hello"));
  ASSERT_TRUE(send_all(pair.a.get(), ByteView(bytes).first(bytes.size() - 1), soon()).ok());
  pair.a.reset();
  const auto status = recv_frame(pair.b.get(), soon()).status();
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_NE(status.message().find("MESSAGE body"), std::string::npos) << status.message();
}

TEST(Frame, OtherProtocolsAreToldApart) {
  SocketPair pair;
  ASSERT_TRUE(send_all(pair.a.get(), as_byte_view("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), soon()).ok());
  EXPECT_EQ(recv_frame(pair.b.get(), soon()).status().code(), Code::kProtocolError);
}

TEST(Frame, DescriptorsRideAlong) {
  SocketPair pair;
  const int fd = pair.a.get();
  ASSERT_TRUE(send_frame_with_fds(fd, FrameType::kArena, 3, as_byte_view("0123456789abcdef"), {&fd, 1}, soon()).ok());
  ASSERT_TRUE(send_frame(fd, FrameType::kPing, 4, {}, soon()).ok());
  const auto frame = recv_frame_with_fds(pair.b.get(), 1, soon());
  ASSERT_TRUE(frame.ok()) << frame.status().to_string();
  EXPECT_EQ(frame->fds.size(), 1U);
  EXPECT_EQ(frame->body.size(), 16U);
  const auto next = recv_frame_with_fds(pair.b.get(), 1, soon());
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next->header.type, FrameType::kPing);
  EXPECT_TRUE(next->fds.empty());
}

}  // namespace
}  // namespace kvferry
