// A stream of frames as a hostile peer may send it, without and with tags, read frame by frame or with what follows
// read ahead. With tags that nobody else can make, the first frame is refused; without, every frame that comes out is
// within its caps, and every byte is the one sent.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/deadline.h"
#include "fuzz_input.h"
#include "wire/channel.h"
#include "wire/frame_reader.h"

using namespace kvferry;

namespace {

constexpr std::size_t kMaxStream = 32u << 10;  // fits into the socket's buffer

std::array<UniqueFd, 2> joined() {
  std::array<int, 2> fds{};
  fuzz::require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) == 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

bool is_expected(Code code) {
  return code == Code::kPeerLost || code == Code::kProtocolError || code == Code::kDataCorrupt ||
         code == Code::kUnauthenticated;
}

// Each frame is followed by `payload` raw bytes.
void check_reader(Channel& channel, ByteView stream, std::size_t payload, bool tagged) {
  FrameReader reader(channel);
  const Wait wait{deadline_in(milliseconds(1000))};
  for (std::size_t offset = 0;;) {
    const auto frame = reader.next(wait);
    if (!frame.ok()) return fuzz::require(is_expected(frame.status().code()));
    fuzz::require(!tagged);
    offset += kFrameHeaderBytes;
    fuzz::require(std::ranges::equal(frame->body, stream.subspan(offset, frame->body.size())));
    offset += frame->body.size();
    Bytes bytes(payload);
    std::vector<iovec> segments{{bytes.data(), payload / 3}, {bytes.data() + payload / 3, payload - payload / 3}};
    const Status got = reader.payload(&segments, wait);
    if (!got.ok()) return fuzz::require(got.code() == Code::kPeerLost && offset + payload > stream.size());
    fuzz::require(std::ranges::equal(bytes, stream.subspan(offset, payload)));
    offset += payload;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2 || size > kMaxStream) return 0;
  auto [ours, theirs] = joined();
  fuzz::require(::send(theirs.get(), data + 1, size - 1, MSG_NOSIGNAL) == static_cast<ssize_t>(size - 1));
  theirs.reset();
  Channel channel(std::move(ours));
  const bool tagged = (data[0] & 1) != 0;
  if (tagged) {
    const Digest key = wire::frame_key("a secret that the fuzzer lacks", wire::Role::kInitiator, {}, {});
    channel.authenticate({wire::Role::kAcceptor, key}, {wire::Role::kInitiator, key});
  }
  if ((data[0] & 4) != 0) {
    check_reader(channel, fuzz::view(data + 1, size - 1), std::size_t{data[0]} / 8 * 700, tagged);
    return 0;
  }
  const std::size_t max_body = (data[0] & 2) != 0 ? 1024 : kMaxBodyBytes;
  for (;;) {
    const auto frame = channel.receive(Wait{deadline_in(milliseconds(1000))}, max_body);
    if (!frame.ok()) {
      fuzz::require(is_expected(frame.status().code()));
      return 0;
    }
    fuzz::require(!tagged);
    fuzz::require(frame->body.size() <= max_body && frame->body.size() <= max_body_bytes(frame->header.type));
  }
}
