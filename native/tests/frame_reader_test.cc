#include "wire/frame_reader.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <thread>

#include "base/deadline.h"
#include "wire/messages.h"

namespace kvferry {
namespace {

Wait patience() { return Wait{deadline_in(milliseconds(20000))}; }

struct Line {
  Line() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    sender.reset(ends[0]);
    receiver.emplace(UniqueFd(ends[1]));
  }
  UniqueFd sender;
  std::optional<Channel> receiver;
};

Bytes numbered(std::size_t count) {
  Bytes out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(i * 7 % 251);
  return out;
}

// Two frames with payload and one without, in one stream.
Bytes stream_of(ByteView payload) {
  Bytes out;
  for (std::uint64_t id = 1; id <= 2; ++id) {
    const Bytes frame = encode_frame(FrameType::kReadData, id, wire::ReadData{payload.size(), {}}.encode());
    out.insert(out.end(), frame.begin(), frame.end());
    out.insert(out.end(), payload.begin(), payload.end());
  }
  const Bytes last = encode_frame(FrameType::kWriteAck, 3, wire::WriteAck{}.encode());
  out.insert(out.end(), last.begin(), last.end());
  return out;
}

// Receives what stream_of() made; the payload goes to two places.
void expect_stream(FrameReader& reader, ByteView payload) {
  for (std::uint64_t id = 1; id <= 2; ++id) {
    const auto frame = reader.next(patience());
    ASSERT_TRUE(frame.ok()) << frame.status().to_string();
    EXPECT_EQ(frame->header.request_id, id);
    wire::ReadData head;
    ASSERT_TRUE(head.parse(frame->body).ok());
    ASSERT_EQ(head.payload_bytes, payload.size());
    Bytes first(payload.size() / 3), second(payload.size() - first.size());
    std::vector<iovec> segments{{first.data(), first.size()}, {nullptr, 0}, {second.data(), second.size()}};
    const Status status = reader.payload(&segments, patience());
    ASSERT_TRUE(status.ok()) << status.to_string();
    first.insert(first.end(), second.begin(), second.end());
    EXPECT_TRUE(std::equal(first.begin(), first.end(), payload.begin(), payload.end()));
  }
  const auto last = reader.next(patience());
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(last->header.type, FrameType::kWriteAck);
  EXPECT_FALSE(reader.has_read_ahead());
}

TEST(FrameReader, GivesTheSameHoweverTheStreamIsCut) {
  for (const std::size_t size : {0u, 1u, 100u, 5000u}) {
    const Bytes payload = numbered(size), stream = stream_of(payload);
    for (const std::size_t step : {std::size_t{1}, std::size_t{7}, std::size_t{4096}, stream.size()}) {
      if (step == 1 && size > 100) continue;
      Line line;
      FrameReader reader(*line.receiver);
      std::thread sending([&] {
        for (std::size_t at = 0; at < stream.size(); at += step) {
          const ByteView part = ByteView(stream).subspan(at, std::min(step, stream.size() - at));
          EXPECT_TRUE(send_all(line.sender.get(), part, patience()).ok());
        }
      });
      expect_stream(reader, payload);
      sending.join();
    }
  }
}

TEST(FrameReader, PutsLargePayloadInPlace) {
  Line line;
  FrameReader reader(*line.receiver);
  const Bytes payload = numbered(3u << 20), stream = stream_of(payload);
  std::thread sending([&] { EXPECT_TRUE(send_all(line.sender.get(), stream, patience()).ok()); });
  expect_stream(reader, payload);
  sending.join();
}

TEST(FrameReader, TellsWhatIsWrong) {
  const Bytes ack = encode_frame(FrameType::kWriteAck, 3, wire::WriteAck{}.encode());
  Bytes spoiled = ack;
  spoiled.back() ^= std::byte{1};
  FrameHeader large;
  large.type = FrameType::kMessage;
  large.body_bytes = 1u << 20;
  const auto large_bytes = large.encode();
  const std::vector<std::pair<Bytes, Code>> cases{
      {Bytes(ack.begin(), ack.begin() + 10), Code::kPeerLost},
      {Bytes(ack.begin(), ack.end() - 1), Code::kPeerLost},
      {spoiled, Code::kDataCorrupt},
      {Bytes(24, std::byte{0x11}), Code::kProtocolError},
      {Bytes(large_bytes.begin(), large_bytes.end()), Code::kProtocolError},
  };
  for (const auto& [bytes, code] : cases) {
    Line line;
    FrameReader reader(*line.receiver);
    ASSERT_TRUE(send_all(line.sender.get(), bytes, patience()).ok());
    shut_down_sending(line.sender.get());
    EXPECT_EQ(reader.next(patience()).status().code(), code);
  }
}

}  // namespace
}  // namespace kvferry
