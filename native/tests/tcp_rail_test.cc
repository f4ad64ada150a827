// What a rail makes of an owner that answers wrongly. The right answers are in the conformance suite.
#include "transport/tcp/tcp_rail.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>

#include "base/deadline.h"

namespace kvferry {
namespace {

Wait patience() { return Wait{deadline_in(milliseconds(20000))}; }

// A rail, and the other end of its connection.
struct Harness {
  explicit Harness(bool checksum = false) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    owner.reset(ends[1]);
    TcpRail::Connection connection{
        Channel(UniqueFd(ends[0])), Interrupt::create().value(), {}, 9, [this](auto number, Deadline) {
          fenced.push_back(number);
          return confirms ? Status() : Status(Code::kPeerLost, "gone");
        }};
    rail.emplace(std::move(connection), checksum);
  }
  // Runs one request, of which the answer is there already.
  Status run(Op op, const Bytes& answer, milliseconds timeout = milliseconds(20000)) {
    EXPECT_TRUE(send_all(owner.get(), answer, patience()).ok());
    const std::vector<RunOp> runs{{memory.data(), {1, 1}, 0, 64}, {memory.data() + 64, {2, 1}, 0, 64}};
    results.assign(runs.size(), Status());
    return rail->execute(Batch{op, runs, 0}, results, deadline_in(timeout), never);
  }

  static constexpr std::uint64_t kFirst = std::uint64_t{9} << 32 | 1;
  const std::atomic<bool> never{false};
  bool confirms = true;
  std::vector<std::uint32_t> fenced;
  std::array<std::byte, 128> memory{};
  std::vector<Status> results;
  UniqueFd owner;
  std::optional<TcpRail> rail;
};

Bytes with_payload(Bytes frame, std::size_t bytes) {
  frame.resize(frame.size() + bytes, std::byte{0x5a});
  return frame;
}

Bytes read_data(std::uint64_t id, const wire::ReadData& reply, std::size_t payload, std::uint16_t flags = 0) {
  return with_payload(encode_frame(FrameType::kReadData, id, reply.encode(), flags), payload);
}

TEST(TcpRail, TakesAllOrSomeOfARead) {
  Harness all;
  EXPECT_TRUE(all.run(Op::kRead, read_data(Harness::kFirst, {128, {}}, 128)).ok());
  EXPECT_EQ(all.memory[127], std::byte{0x5a});
  Harness some;
  EXPECT_TRUE(some.run(Op::kRead, read_data(Harness::kFirst, {64, {{Code::kStale, 0}, {Code::kOk, 0}}}, 64)).ok());
  EXPECT_EQ(some.results[0].code(), Code::kStale);
  EXPECT_TRUE(some.results[1].ok());
  EXPECT_EQ(some.memory[63], std::byte{0});
  EXPECT_EQ(some.memory[64], std::byte{0x5a});
}

TEST(TcpRail, BreaksOnAnswersThatDoNotFit) {
  using Results = std::vector<wire::PieceResult>;
  const std::vector<Bytes> answers{
      read_data(Harness::kFirst + 1, {128, {}}, 128),                     // of another request
      read_data(Harness::kFirst, {127, {}}, 128),                         // another length
      read_data(Harness::kFirst, {129, {}}, 129),                         //
      read_data(Harness::kFirst, {64, Results{{Code::kOk, 0}}}, 64),      // fewer pieces
      read_data(Harness::kFirst, {128, Results(3)}, 128),                 // more
      read_data(Harness::kFirst, {128, Results(2)}, 128, kFlagChecksum),  // checksums nobody asked for
      encode_frame(FrameType::kWriteAck, Harness::kFirst, wire::WriteAck{}.encode()),
      encode_frame(FrameType::kPing, Harness::kFirst, {}),
      encode_frame(FrameType::kReadData, Harness::kFirst, Bytes(15)),
      Bytes(24, std::byte{0x11}),
  };
  for (std::size_t i = 0; i < answers.size(); ++i) {
    Harness harness;
    EXPECT_EQ(harness.run(Op::kRead, answers[i]).code(), Code::kProtocolError) << i;
    EXPECT_FALSE(harness.results[0].ok()) << i;
    EXPECT_FALSE(harness.results[1].ok()) << i;
    EXPECT_EQ(harness.memory[0], std::byte{0}) << i;
    EXPECT_TRUE(harness.fenced.empty()) << "nothing of a read can land at the owner";
  }
}

TEST(TcpRail, ChecksumsMustBeThereAndRight) {
  Harness missing(true);
  EXPECT_EQ(missing.run(Op::kRead, read_data(Harness::kFirst, {128, {}}, 128)).code(), Code::kProtocolError);
  Harness flagged(true);
  EXPECT_EQ(flagged.run(Op::kRead, read_data(Harness::kFirst, {128, {}}, 128, kFlagChecksum)).code(),
            Code::kProtocolError);
  Harness wrong(true);
  const wire::ReadData reply{128, {{Code::kOk, 1}, {Code::kOk, 2}}};
  EXPECT_EQ(wrong.run(Op::kRead, read_data(Harness::kFirst, reply, 128, kFlagChecksum)).code(), Code::kDataCorrupt);
}

TEST(TcpRail, FencesAWriteWithoutAnEnd) {
  for (const bool confirms : {true, false}) {
    Harness harness;
    harness.confirms = confirms;
    const Status status = harness.run(Op::kWrite, {}, milliseconds(30));
    EXPECT_EQ(harness.fenced, std::vector<std::uint32_t>{9});
    EXPECT_EQ(harness.results[0].code(), Code::kDeadlineExceeded);
    EXPECT_EQ(status.ok(), !confirms) << "what may still land is not tried again";
    EXPECT_EQ(harness.results[1].message().find("may still land") != std::string::npos, !confirms);
    harness.results.assign(2, Status());
    EXPECT_EQ(harness.run(Op::kRead, {}).code(), Code::kPeerLost) << "the rail is of no more use";
  }
}

TEST(TcpRail, AnAnsweredWriteNeedsNoFence) {
  Harness harness;
  const Bytes ack = encode_frame(FrameType::kWriteAck, Harness::kFirst, wire::WriteAck{}.encode());
  EXPECT_TRUE(harness.run(Op::kWrite, ack).ok());
  Harness refused;
  const wire::WriteAck codes{{Code::kOk, Code::kPermissionDenied}};
  EXPECT_TRUE(refused.run(Op::kWrite, encode_frame(FrameType::kWriteAck, Harness::kFirst, codes.encode())).ok());
  EXPECT_EQ(refused.results[1].code(), Code::kPermissionDenied);
  EXPECT_TRUE(harness.fenced.empty() && refused.fenced.empty());
}

}  // namespace
}  // namespace kvferry
