// Frames of an honest peer, with right tags, of which somebody on the way changes, cuts off, drops, repeats or reorders
// some: what comes before is received as it was sent, and nothing of what comes after.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "fuzz_input.h"
#include "wire/channel.h"
#include "wire/frame_reader.h"

using namespace kvferry;

namespace {

constexpr std::size_t kMaxFrames = 16;
constexpr std::array kTypes{FrameType::kPing,     FrameType::kMessage, FrameType::kRegions,  FrameType::kRead,
                            FrameType::kReadData, FrameType::kWrite,   FrameType::kWriteAck, FrameType::kFence,
                            FrameType::kHelloAck, FrameType::kError,   FrameType::kGoodbye};

struct Sent {
  FrameType type;
  Bytes body;
  Bytes wire;  // header, body and tag
};

Digest key_of(wire::Role role) { return wire::frame_key("what both ends know", role, {}, {}); }

void join(Channel& channel, wire::Role self, wire::Role other) {
  channel.authenticate({self, key_of(self)}, {other, key_of(other)});
}

// Type, length, body; over and over.
std::vector<Sent> frames_of(const std::uint8_t* data, std::size_t size) {
  Channel sender{UniqueFd()};
  join(sender, wire::Role::kInitiator, wire::Role::kAcceptor);
  std::vector<Sent> frames;
  for (std::size_t at = 0; at + 2 <= size && frames.size() < kMaxFrames;) {
    const FrameType type = kTypes[data[at] % kTypes.size()];
    const std::size_t length = std::min({std::size_t{data[at + 1]}, size - at - 2, max_body_bytes(type)});
    const ByteView body = fuzz::view(data + at + 2, length);
    ByteWriter writer = begin_frame({});
    writer.raw(body);
    frames.push_back({type, Bytes(body.begin(), body.end()), sender.finish(std::move(writer), type, frames.size())});
    at += 2 + length;
  }
  return frames;
}

struct Tampered {
  Bytes stream;
  std::size_t intact = 0;  // frames that must come out
};

Tampered tamper(std::vector<Sent> frames, std::uint8_t how, std::size_t where) {
  const std::size_t chosen = where % frames.size();
  const std::size_t count = frames.size();
  Tampered out;
  out.intact = count;
  if (how == 1) {  // changed
    Bytes& wire = frames[chosen].wire;
    wire[where / count % wire.size()] ^= std::byte{1} << (where % 8);
    out.intact = chosen;
  } else if (how == 2) {  // cut off
    Bytes& wire = frames[chosen].wire;
    wire.resize(where / count % wire.size());
    frames.resize(chosen + 1);
    out.intact = chosen;
  } else if (how == 3) {  // dropped
    frames.erase(frames.begin() + static_cast<std::ptrdiff_t>(chosen));
    out.intact = chosen;
  } else if (how == 4) {  // repeated
    frames.insert(frames.begin() + static_cast<std::ptrdiff_t>(chosen), frames[chosen]);
    out.intact = chosen + 1;
  } else if (how == 5 && chosen + 1 < count) {  // out of order
    std::swap(frames[chosen], frames[chosen + 1]);
    out.intact = chosen;
  }
  for (const Sent& frame : frames) out.stream.insert(out.stream.end(), frame.wire.begin(), frame.wire.end());
  return out;
}

struct Seen {
  FrameType type;
  Bytes body;
};

// By the way of control connections, or that of data connections.
Result<Seen> next(Channel& channel, std::optional<FrameReader>& reader) {
  const Wait wait{deadline_in(milliseconds(1000))};
  if (!reader) {
    KVF_ASSIGN_OR_RETURN(Frame frame, channel.receive(wait));
    return Seen{frame.header.type, std::move(frame.body)};
  }
  KVF_ASSIGN_OR_RETURN(const FrameReader::View frame, reader->next(wait));
  return Seen{frame.header.type, Bytes(frame.body.begin(), frame.body.end())};
}

bool is_refusal(Code code) {
  return code == Code::kPeerLost || code == Code::kProtocolError || code == Code::kDataCorrupt ||
         code == Code::kUnauthenticated;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 5) return 0;
  const std::vector<Sent> frames = frames_of(data + 3, size - 3);
  if (frames.empty()) return 0;
  const Tampered sent = tamper(frames, data[0] % 6, std::size_t{data[1]} << 8 | data[2]);
  std::array<int, 2> fds{};
  fuzz::require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) == 0);
  Channel channel{UniqueFd(fds[0])};
  UniqueFd theirs(fds[1]);
  const auto length = static_cast<ssize_t>(sent.stream.size());
  fuzz::require(::send(theirs.get(), sent.stream.data(), sent.stream.size(), MSG_NOSIGNAL) == length);
  theirs.reset();
  join(channel, wire::Role::kAcceptor, wire::Role::kInitiator);
  std::optional<FrameReader> reader;
  if (data[0] >= 128) reader.emplace(channel);
  for (std::size_t i = 0; i < sent.intact; ++i) {
    const auto seen = next(channel, reader);
    fuzz::require(seen.ok() && seen->type == frames[i].type && std::ranges::equal(seen->body, frames[i].body));
  }
  const auto end = next(channel, reader);
  fuzz::require(!end.ok() && is_refusal(end.status().code()));
  return 0;
}
