// The TLS handshake with a peer that lacks the key and sends what it likes: it ends with a refusal, at either side.
// OpenSSL has fuzzers of its own; this one is for what we make of its answers, and for our look-up of the key.
#include <sys/socket.h>

#include <array>
#include <memory>
#include <utility>

#include "base/deadline.h"
#include "base/tls.h"
#include "fuzz_input.h"

using namespace kvferry;

namespace {

constexpr std::size_t kMaxStream = 32u << 10;

std::shared_ptr<TlsContext> context() {
  static const auto one = [] {
    TlsIdentity identity;
    identity.key.fill(9);
    return TlsContext::create(identity);
  }();
  return one.ok() ? *one : nullptr;  // no OpenSSL 3 here
}

bool is_refusal(Code code) {
  return code == Code::kPeerLost || code == Code::kUnauthenticated || code == Code::kUnsupported ||
         code == Code::kProtocolError;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::shared_ptr<TlsContext> node = context();
  if (size < 1 || size > kMaxStream || !node) return 0;
  std::array<int, 2> fds{};
  fuzz::require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) == 0);
  const UniqueFd ours(fds[0]), theirs(fds[1]);
  fuzz::require(::send(theirs.get(), data + 1, size - 1, MSG_NOSIGNAL) == static_cast<ssize_t>(size - 1));
  fuzz::require(::shutdown(theirs.get(), SHUT_WR) == 0);
  const TlsSide side = (data[0] & 1) != 0 ? TlsSide::kConnect : TlsSide::kAccept;
  const auto session = node->open(ours.get(), side, Wait{deadline_in(milliseconds(1000))});
  fuzz::require(!session.ok() && is_refusal(session.status().code()));
  return 0;
}
