// TLS between two threads: who is let in, what arrives, and what an attacker or a dying peer causes.
#include "base/tls.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <future>
#include <random>
#include <thread>

#include "base/deadline.h"
#include "base/tls_library.h"

#if __has_include(<openssl/ssl.h>)
#include <openssl/err.h>
#include <openssl/ssl.h>
#endif

namespace kvferry {
namespace {

Wait soon(int ms = 5000) { return Wait{deadline_in(milliseconds(ms))}; }

TlsIdentity by_key(std::uint8_t seed) {
  TlsIdentity identity;
  identity.key.fill(seed);
  return identity;
}

TlsIdentity by_certificate(const std::string& issuer, const std::string& trusted) {
  const std::string folder = std::string(KVFERRY_TEST_DATA) + "/tls/";
  return {folder + "node-of-" + issuer + ".pem", folder + "node-key.pem", folder + trusted + ".pem", {}};
}

// Two sockets; by default each is the other's end. With a relay the test stands between them.
struct Wire {
  explicit Wire(bool relayed = false) {
    std::array<int, 2> fds{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()), 0);
    a = UniqueFd(fds[0]);
    b = UniqueFd(fds[1]);
    if (!relayed) return;
    near = std::move(b);
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()), 0);
    far = UniqueFd(fds[0]);
    b = UniqueFd(fds[1]);
  }
  UniqueFd a, b, near, far;
};

struct Pair {
  Result<std::unique_ptr<TlsSession>> client, server;
  bool ok() const { return client.ok() && server.ok(); }
};

Pair open(const Wire& wire, const TlsIdentity& client, const TlsIdentity& server) {
  const auto to = TlsContext::create(client), from = TlsContext::create(server);
  EXPECT_TRUE(to.ok() && from.ok()) << to.status().to_string() << from.status().to_string();
  if (!to.ok() || !from.ok()) return {to.status(), from.status()};
  auto accepted = std::async(std::launch::async, [&] { return (*from)->open(wire.b.get(), TlsSide::kAccept, soon()); });
  auto connected = (*to)->open(wire.a.get(), TlsSide::kConnect, soon());
  return {std::move(connected), accepted.get()};
}

Bytes noise(std::size_t length) {
  std::mt19937 random(static_cast<std::mt19937::result_type>(length));
  Bytes out(length);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

// Segments of odd sizes over `bytes`, small ones and large ones mixed.
std::vector<iovec> cut(std::span<std::byte> bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<iovec> out;
  while (!bytes.empty()) {
    const std::size_t take = std::min<std::size_t>(bytes.size(), random() % (out.size() % 3 == 0 ? 60000 : 900));
    out.push_back({bytes.data(), take});
    bytes = bytes.subspan(take);
  }
  return out;
}

Status receive(TlsSession& session, std::span<std::byte> out, const Wait& wait) {
  iovec segment{out.data(), out.size()};
  return session.recv_vectored({&segment, 1}, wait);
}

Status send(TlsSession& session, std::span<const std::byte> bytes, const Wait& wait) {
  iovec segment{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return session.send_vectored({&segment, 1}, wait);
}

class Tls : public testing::Test {
 protected:
  void SetUp() override {
    const auto library = TlsLibrary::get();
    if (!library.ok()) GTEST_SKIP() << library.status().to_string();
  }
};

TEST(TlsLibrary, TellsWhatToInstallWhenItIsMissing) {
  const Status status = TlsLibrary::open("libssl.so.nowhere", "libcrypto.so.nowhere").status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("libcrypto.so.nowhere"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("apt-get install libssl3"), std::string::npos);
  const Status other = TlsLibrary::open("libc.so.6", "libc.so.6").status();
  EXPECT_NE(other.message().find("lacks"), std::string::npos) << other.message();
}

#if __has_include(<openssl/ssl.h>)
TEST(TlsLibrary, ConstantsAreThoseOfTheHeaders) {
  using namespace openssl;
  EXPECT_EQ(kTls13, TLS1_3_VERSION);
  EXPECT_EQ(kFiletypePem, SSL_FILETYPE_PEM);
  EXPECT_EQ(kVerifyPeer, SSL_VERIFY_PEER);
  EXPECT_EQ(kVerifyFailIfNoPeerCert, SSL_VERIFY_FAIL_IF_NO_PEER_CERT);
  EXPECT_EQ(kCtrlMode, SSL_CTRL_MODE);
  EXPECT_EQ(kCtrlSetReadAhead, SSL_CTRL_SET_READ_AHEAD);
  EXPECT_EQ(kCtrlSetSessionCacheMode, SSL_CTRL_SET_SESS_CACHE_MODE);
  EXPECT_EQ(kCtrlSetMinProto, SSL_CTRL_SET_MIN_PROTO_VERSION);
  EXPECT_EQ(kCtrlSetMaxProto, SSL_CTRL_SET_MAX_PROTO_VERSION);
  EXPECT_EQ(kModePartialWrite, SSL_MODE_ENABLE_PARTIAL_WRITE);
  EXPECT_EQ(kModeMovingWriteBuffer, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  EXPECT_EQ(kOptEnableKtls, SSL_OP_ENABLE_KTLS);
  EXPECT_EQ(kOptIgnoreUnexpectedEof, SSL_OP_IGNORE_UNEXPECTED_EOF);
  EXPECT_EQ(kOptNoTicket, SSL_OP_NO_TICKET);
  EXPECT_EQ(kErrorSsl, SSL_ERROR_SSL);
  EXPECT_EQ(kErrorWantRead, SSL_ERROR_WANT_READ);
  EXPECT_EQ(kErrorWantWrite, SSL_ERROR_WANT_WRITE);
  EXPECT_EQ(kErrorSyscall, SSL_ERROR_SYSCALL);
  EXPECT_EQ(kErrorZeroReturn, SSL_ERROR_ZERO_RETURN);
  EXPECT_EQ(kBioGetKtlsSend, BIO_CTRL_GET_KTLS_SEND);
  EXPECT_EQ(kBioGetKtlsRecv, BIO_CTRL_GET_KTLS_RECV);
  EXPECT_EQ(kWrongVersionNumber, static_cast<unsigned long>(SSL_R_WRONG_VERSION_NUMBER));
  EXPECT_EQ(kReasonMask, static_cast<unsigned long>(ERR_REASON_MASK));
  EXPECT_EQ(kAlertReasons, static_cast<unsigned long>(SSL_AD_REASON_OFFSET));
}
#endif

TEST_F(Tls, CarriesBytesBothWaysAtOnceInAnySegments) {
  for (const bool certificates : {false, true}) {
    const Wire wire;
    const TlsIdentity who = certificates ? by_certificate("ca", "ca") : by_key(1);
    const Pair pair = open(wire, who, who);
    ASSERT_TRUE(pair.ok()) << pair.client.status().to_string() << pair.server.status().to_string();
    EXPECT_EQ((*pair.client)->binding(), (*pair.server)->binding());
    EXPECT_NE((*pair.client)->description().find(certificates ? "certificates" : "a shared key"), std::string::npos);
    Bytes forth = noise(3000001), back = noise(2000003), forth_got(forth.size()), back_got(back.size());
    const auto move = [](TlsSession& from, std::span<std::byte> bytes, unsigned seed, bool sending) {
      std::vector<iovec> segments = cut(bytes, seed);
      const Status done = sending ? from.send_vectored(segments, soon()) : from.recv_vectored(segments, soon());
      EXPECT_TRUE(done.ok()) << done.to_string();
    };
    {
      const std::jthread one([&] { move(**pair.client, forth, 1, true); });
      const std::jthread two([&] { move(**pair.client, back_got, 2, false); });
      const std::jthread three([&] { move(**pair.server, forth_got, 3, false); });
      move(**pair.server, back, 4, true);
    }
    EXPECT_EQ(forth, forth_got);
    EXPECT_EQ(back, back_got);
  }
}

TEST_F(Tls, LetsNobodyInWhoHasAnotherIdentity) {
  struct Case {
    const char* name;
    TlsIdentity client, server;
  };
  const std::vector<Case> cases{
      {"other key", by_key(1), by_key(2)},
      {"client of another authority", by_certificate("other-ca", "ca"), by_certificate("ca", "ca")},
      {"server of another authority", by_certificate("ca", "ca"), by_certificate("other-ca", "ca")},
      {"key against certificate", by_key(1), by_certificate("ca", "ca")},
      {"certificate against key", by_certificate("ca", "ca"), by_key(1)},
  };
  for (const Case& c : cases) {
    const Wire wire;
    const Pair pair = open(wire, c.client, c.server);
    EXPECT_FALSE(pair.server.ok()) << c.name;
    EXPECT_TRUE(pair.server.status().code() == Code::kUnauthenticated) << c.name << pair.server.status().to_string();
    // A client of TLS 1.3 may be through before it hears that it is not accepted.
    Status end = pair.client.status();
    std::byte byte{};
    if (end.ok()) end = receive(**pair.client, {&byte, 1}, soon());
    EXPECT_EQ(end.code(), Code::kUnauthenticated) << c.name << ": " << end.to_string();
    EXPECT_NE(end.message().find("cluster_secret"), std::string::npos) << c.name;
  }
}

TEST_F(Tls, NamesTheFileThatCannotBeUsed) {
  TlsIdentity identity = by_certificate("ca", "ca");
  identity.cert_file = "/nowhere/cert.pem";
  EXPECT_EQ(TlsContext::create(identity).status().message(),
            "tls_cert_file: '/nowhere/cert.pem' cannot be used: No such file or directory");
  identity = by_certificate("ca", "ca");
  identity.key_file = identity.cert_file;
  EXPECT_NE(TlsContext::create(identity).status().message().find("tls_key_file"), std::string::npos);
  identity = by_certificate("ca", "ca");
  identity.ca_file = "/nowhere/ca.pem";
  EXPECT_EQ(TlsContext::create(identity).status().code(), Code::kInvalidArgument);
}

TEST_F(Tls, EveryWaitEndsAtItsDeadlineOrByItsInterrupt) {
  const Wire silent;
  const auto context = TlsContext::create(by_key(1));
  ASSERT_TRUE(context.ok());
  for (const TlsSide side : {TlsSide::kConnect, TlsSide::kAccept}) {
    EXPECT_EQ((*context)->open(silent.a.get(), side, soon(50)).status().code(), Code::kDeadlineExceeded);
  }
  const Wire wire;
  const Pair pair = open(wire, by_key(1), by_key(1));
  ASSERT_TRUE(pair.ok());
  Bytes bytes(8u << 20);
  EXPECT_EQ(receive(**pair.server, std::span(bytes).first(1), soon(50)).code(), Code::kDeadlineExceeded);
  EXPECT_EQ((*pair.server)->wait_readable(soon(50)).code(), Code::kDeadlineExceeded);
  EXPECT_EQ(send(**pair.client, bytes, soon(50)).code(), Code::kDeadlineExceeded) << "nobody reads";
  const auto interrupt = Interrupt::create();
  ASSERT_TRUE(interrupt.ok());
  interrupt->set();
  Wait interrupted = soon();
  interrupted.interrupt = &*interrupt;
  EXPECT_EQ((*pair.client)->wait_readable(interrupted).code(), Code::kCancelled);
}

TEST_F(Tls, APeerThatLeavesIsLostWithoutASignal) {
  for (const bool certificates : {false, true}) {
    Wire wire;
    const TlsIdentity who = certificates ? by_certificate("ca", "ca") : by_key(1);
    Pair pair = open(wire, who, who);
    ASSERT_TRUE(pair.ok());
    wire.b.reset();
    const Bytes bytes(1u << 20);
    std::byte byte{};
    EXPECT_EQ(receive(**pair.client, {&byte, 1}, soon()).code(), Code::kPeerLost);
    EXPECT_EQ(send(**pair.client, bytes, soon()).code(), Code::kPeerLost);  // SIGPIPE would end this program
  }
}

TEST_F(Tls, SaysThatDataIsThereWhenItWasReadAhead) {
  const Wire wire;
  const Pair pair = open(wire, by_key(1), by_key(1));
  ASSERT_TRUE(pair.ok());
  Bytes bytes = noise(3000);
  ASSERT_TRUE(send(**pair.client, bytes, soon()).ok());
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE((*pair.server)->wait_readable(soon()).ok());
    Bytes got(1000);
    ASSERT_TRUE(receive(**pair.server, got, soon()).ok());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), bytes.begin() + static_cast<std::ptrdiff_t>(1000 * i)));
  }
}

// Moves what comes from one end to the other; bytes are changed by `spoil`.
class Relay {
 public:
  Relay(const Wire& wire, std::function<void(std::span<std::byte>)> spoil)
      : spoil_(std::move(spoil)),
        forth_([this, &wire](const std::stop_token& stop) { run(stop, wire.near.get(), wire.far.get(), true); }),
        back_([this, &wire](const std::stop_token& stop) { run(stop, wire.far.get(), wire.near.get(), false); }) {}

 private:
  void run(const std::stop_token& stop, int from, int to, bool spoiled) {
    Bytes buffer(65536);
    while (!stop.stop_requested()) {
      if (!wait_for(from, POLLIN, soon(20)).ok()) continue;
      const ssize_t got = ::read(from, buffer.data(), buffer.size());
      if (got <= 0) return;
      const auto bytes = std::span(buffer).first(static_cast<std::size_t>(got));
      if (spoiled) spoil_(bytes);
      if (!send_all(to, bytes, soon()).ok()) return;
    }
  }
  std::function<void(std::span<std::byte>)> spoil_;
  std::jthread forth_, back_;
};

TEST_F(Tls, AFlippedBitEndsTheSession) {
  const Wire wire(true);
  std::atomic<bool> spoiling{false};
  const Relay relay(wire, [&](std::span<std::byte> bytes) {
    if (spoiling) bytes.back() ^= std::byte{1};
  });
  const Pair pair = open(wire, by_key(1), by_key(1));
  ASSERT_TRUE(pair.ok()) << pair.client.status().to_string() << pair.server.status().to_string();
  spoiling = true;
  ASSERT_TRUE(send(**pair.client, Bytes(100), soon()).ok());
  Bytes got(100);
  EXPECT_EQ(receive(**pair.server, got, soon()).code(), Code::kUnauthenticated);
}

TEST_F(Tls, SpeakingPlainlyIsToldFromTls) {
  const auto context = TlsContext::create(by_key(1));
  ASSERT_TRUE(context.ok());
  for (const TlsSide side : {TlsSide::kConnect, TlsSide::kAccept}) {
    const Wire wire;
    ASSERT_TRUE(send_all(wire.b.get(), as_byte_view("KVF1 and more"), soon()).ok());
    const Status status = (*context)->open(wire.a.get(), side, soon()).status();
    EXPECT_EQ(status.code(), Code::kUnsupported) << status.to_string();
  }
}

}  // namespace
}  // namespace kvferry
