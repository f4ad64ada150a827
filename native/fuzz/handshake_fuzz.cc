// What both ends check of each other's first messages: whatever these are, nobody is let in without the secret, and
// nobody is kept out for the proof who has it.
#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "fuzz_input.h"
#include "wire/handshake.h"
#include "wire/messages.h"

using namespace kvferry;

namespace {

constexpr std::string_view kSecret = "a secret that the fuzzer lacks";
const std::array<std::byte, 32> kBinding{std::byte{7}};  // of a TLS session

bool is_refused(const Status& status) { return status.code() == Code::kUnauthenticated; }

// With the proof of somebody who knows the secret in place of the one that came.
Bytes proved(ByteView hello, ByteView ack, const wire::Shared& shared) {
  Bytes out(ack.begin(), ack.end());
  const Digest proof = wire::handshake_proof(shared, wire::Role::kAcceptor, hello, ack);
  std::memcpy(out.data() + out.size() - proof.size(), proof.data(), proof.size());
  return out;
}

void check_answer(const wire::Hello& hello, ByteView hello_body, ByteView ack_body, const wire::Shared& shared) {
  const auto ack = wire::HelloAck::decode(ack_body);
  if (!ack.ok()) return;
  fuzz::require(!wire::check_hello_ack(*ack, ack_body, hello, hello_body, shared).ok());
  const Bytes honest = proved(hello_body, ack_body, shared);
  const auto honest_ack = wire::HelloAck::decode(honest);
  fuzz::require(honest_ack.ok());
  const Status checked = wire::check_hello_ack(*honest_ack, honest, hello, hello_body, shared);
  fuzz::require(!is_refused(checked) || !ack->has_secret);
  const wire::Shared other_session{shared.secret, shared.binding.empty() ? ByteView(kBinding) : ByteView()};
  fuzz::require(!wire::check_hello_ack(*honest_ack, honest, hello, hello_body, other_session).ok());
}

}  // namespace

// Whether there is TLS, length of the HELLO (two bytes), HELLO, HELLO_ACK, of which the last 32 bytes are AUTH, too.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const wire::Shared shared{kSecret, (data[0] & 1) != 0 ? ByteView(kBinding) : ByteView()};
  const std::size_t length = std::min(std::size_t{data[1]} << 8 | data[2], size - 3);
  const ByteView hello_body = fuzz::view(data + 3, length);
  const ByteView ack_body = fuzz::view(data + 3 + length, size - 3 - length);
  const auto hello = wire::Hello::decode(hello_body);
  if (!hello.ok()) return 0;
  NodeId self;
  self.bytes.fill(2);
  const Status checked = wire::check_hello(*hello, self, "127.0.0.1:4000", true);
  fuzz::require(!checked.ok() || (hello->has_secret && hello->self != self));
  check_answer(*hello, hello_body, ack_body, shared);
  if (ack_body.size() < sizeof(Digest)) return 0;
  const auto auth = wire::Auth::decode(ack_body.last(sizeof(Digest)));
  if (!auth.ok()) return 0;
  fuzz::require(is_refused(wire::check_auth(*auth, hello_body, ack_body, shared)));
  const wire::Auth honest{wire::handshake_proof(shared, wire::Role::kInitiator, hello_body, ack_body)};
  fuzz::require(wire::check_auth(honest, hello_body, ack_body, shared).ok());
  return 0;
}
