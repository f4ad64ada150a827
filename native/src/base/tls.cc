#include "base/tls.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/socket.h"

namespace kvferry {
namespace {

constexpr char kPskIdentity[] = "kvferry";
constexpr std::string_view kExporterLabel = "EXPORTER-kvferry";
constexpr std::size_t kReadBufferBytes = 64u << 10;  // several records by one system call
constexpr std::string_view kAdvice =
    "; both sides need the same transfer.cluster_secret, or certificates of the same authority (transfer.tls_ca_file), "
    "and the same of the two";

// OpenSSL writes with write(2), which would end the process if the peer has hung up.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
    ours_ = sigismember(&before_, SIGPIPE) == 0;
  }
  ~NoSigpipe() {
    if (!ours_) return;
    const timespec now{};
    while (failed_ && ::sigtimedwait(&pipe_, nullptr, &now) < 0 && errno == EINTR) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

  Status check(Status status) {  // a failure may have left the signal pending
    failed_ = failed_ || !status.ok();
    return status;
  }

 private:
  sigset_t pipe_{}, before_{};
  bool ours_ = false;
  bool failed_ = false;
};

// The oldest error of this thread, and clears the rest.
unsigned long take_error(const TlsLibrary& library) {
  const unsigned long error = library.ERR_get_error();
  library.ERR_clear_error();
  return error;
}

std::string reason_of(const TlsLibrary& library, unsigned long error) {
  const char* const reason = library.ERR_reason_error_string(error);
  if (reason != nullptr) return reason;
  if ((error & openssl::kSystemError) != 0) {
    return std::system_category().message(static_cast<int>(error & ~openssl::kSystemError));
  }
  return "OpenSSL error " + std::to_string(error & openssl::kReasonMask);
}

Status unusable(const TlsLibrary& library, std::string_view option, const std::string& file) {
  const unsigned long error = take_error(library);
  return {Code::kInvalidArgument,
          std::string(option) + ": '" + file + "' cannot be used: " + reason_of(library, error)};
}

}  // namespace

TlsSession::~TlsSession() { library_.SSL_free(session_); }

Result<TlsSession::Step> TlsSession::step(int result, std::size_t moved, std::string_view doing) {
  const int error_number = errno;
  if (result > 0) return Step{moved, 0};
  const std::string what = "TLS: " + std::string(doing) + ": ";
  switch (library_.SSL_get_error(session_, result)) {
    case openssl::kErrorWantRead:
      return Step{0, POLLIN};
    case openssl::kErrorWantWrite:
      return Step{0, POLLOUT};
    case openssl::kErrorZeroReturn:
      return {Code::kPeerLost, what + "closed by the peer"};
    case openssl::kErrorSyscall:
      library_.ERR_clear_error();
      if (error_number == 0) return {Code::kPeerLost, what + "closed by the peer"};
      return errno_status(Code::kPeerLost, "TLS: " + std::string(doing), error_number);
    default:
      break;
  }
  const unsigned long error = take_error(library_);
  const unsigned long reason = error & openssl::kReasonMask;
  if (reason == openssl::kWrongVersionNumber) return {Code::kUnsupported, what + "the peer does not speak TLS"};
  const bool alert = reason > openssl::kAlertReasons;
  std::string why = alert ? "the peer refused: " + reason_of(library_, error) : reason_of(library_, error);
  if (const long verified = library_.SSL_get_verify_result(session_); verified != 0) {
    why += std::string(": ") + library_.X509_verify_cert_error_string(verified);
  }
  return {Code::kUnauthenticated, what + why + std::string(kAdvice)};
}

Status TlsSession::handshake(TlsSide side, const Wait& wait) {
  auto* const advance = side == TlsSide::kConnect ? library_.SSL_connect : library_.SSL_accept;
  for (;;) {
    errno = 0;
    library_.ERR_clear_error();
    KVF_ASSIGN_OR_RETURN(const Step next, step(advance(session_), 1, "handshake"));
    if (next.moved > 0) return {};
    KVF_RETURN_IF_ERROR(wait_for(fd_, next.events, wait));
  }
}

Status TlsSession::finish_handshake(bool by_certificate) {
  if (!by_certificate && library_.SSL_session_reused(session_) != 1) {
    return {Code::kUnauthenticated, "TLS: handshake: the shared key was not used"};
  }
  const int exported = library_.SSL_export_keying_material(session_, binding_.data(), binding_.size(),
                                                           kExporterLabel.data(), kExporterLabel.size(), nullptr, 0, 0);
  if (exported != 1) return {Code::kInternal, "TLS: no key for the handshake could be derived"};
  const bool sends = library_.BIO_ctrl(library_.SSL_get_wbio(session_), openssl::kBioGetKtlsSend, 0, nullptr) > 0;
  const bool receives = library_.BIO_ctrl(library_.SSL_get_rbio(session_), openssl::kBioGetKtlsRecv, 0, nullptr) > 0;
  // Reading ahead would take records that the kernel has to decrypt.
  if (!receives) library_.SSL_ctrl(session_, openssl::kCtrlSetReadAhead, 1, nullptr);
  description_ = std::string("TLS 1.3 with ") + (by_certificate ? "certificates" : "a shared key") + ", ";
  if (sends && receives) {
    description_ += "by the kernel";
  } else if (sends || receives) {
    description_ += sends ? "sending by the kernel" : "receiving by the kernel";
  } else {
    description_ += "by this process";
  }
  return {};
}

Result<TlsSession::Step> TlsSession::write_some(std::span<const iovec> segments, MemoryGate* gate) {
  const GatePass pass(gate);
  if (!pass.inside()) return gate_closed();
  // A record of its own for each small piece would cost more than to copy them together. After a wait the same bytes
  // come again, as OpenSSL demands: segments only leave the front when they were sent.
  const void* data = segments.front().iov_base;
  std::size_t length = segments.front().iov_len;
  if (length < gathered_.size() && segments.size() > 1) {
    length = 0;
    for (const iovec& segment : segments) {
      const std::size_t take = std::min(segment.iov_len, gathered_.size() - length);
      if (take > 0) std::memcpy(gathered_.data() + length, segment.iov_base, take);  // an empty one may be nowhere
      length += take;
      if (length == gathered_.size()) break;
    }
    data = gathered_.data();
  }
  const std::lock_guard lock(mutex_);
  errno = 0;
  library_.ERR_clear_error();
  std::size_t moved = 0;
  const int result = library_.SSL_write_ex(session_, data, length, &moved);
  return step(result, moved, "sending");
}

Result<TlsSession::Step> TlsSession::read_some(const iovec& segment, MemoryGate* gate) {
  const GatePass pass(gate);
  if (!pass.inside()) return gate_closed();
  const std::lock_guard lock(mutex_);
  errno = 0;
  library_.ERR_clear_error();
  std::size_t moved = 0;
  const int result = library_.SSL_read_ex(session_, segment.iov_base, segment.iov_len, &moved);
  return step(result, moved, "receiving");
}

Status TlsSession::send_vectored(std::span<iovec> segments, const Wait& wait) {
  NoSigpipe guard;
  drop_front(segments, 0);
  while (!segments.empty()) {
    const auto step = write_some(segments, wait.gate);
    if (!step.ok()) return guard.check(step.status());
    if (step->moved == 0) KVF_RETURN_IF_ERROR(wait_for(fd_, step->events, wait));
    drop_front(segments, step->moved);
  }
  return {};
}

Status TlsSession::recv_vectored(std::span<iovec> segments, const Wait& wait) {
  drop_front(segments, 0);
  while (!segments.empty()) {
    KVF_ASSIGN_OR_RETURN(const std::size_t got, recv_some(segments, wait));
    drop_front(segments, got);
  }
  return {};
}

// As much as is there: a record at a time would cost a call of each of us for every 16 KiB.
Result<std::size_t> TlsSession::recv_some(std::span<const iovec> segments, const Wait& wait) {
  if (!receiving_failed_.ok()) return receiving_failed_;
  NoSigpipe guard;  // reading may send an alert
  std::size_t total = 0;
  for (iovec rest : segments) {
    while (rest.iov_len > 0) {
      const auto step = read_some(rest, wait.gate);
      if (!step.ok()) {
        const Status failed = guard.check(step.status());
        if (total == 0) return failed;
        receiving_failed_ = failed;  // for the next call: OpenSSL says why only once
        return total;
      }
      if (step->moved == 0 && total > 0) return total;
      if (step->moved == 0) KVF_RETURN_IF_ERROR(wait_for(fd_, step->events, wait));
      rest.iov_base = static_cast<std::byte*>(rest.iov_base) + step->moved;
      rest.iov_len -= step->moved;
      total += step->moved;
    }
  }
  return total;
}

Status TlsSession::wait_readable(const Wait& wait) {
  const bool pending = [&] {
    const std::lock_guard lock(mutex_);
    return library_.SSL_has_pending(session_) != 0;
  }();
  if (!pending) return wait_for(fd_, POLLIN, wait);
  if (wait.interrupt != nullptr && wait.interrupt->is_set()) return {Code::kCancelled, "interrupted"};
  return {};
}

Result<std::shared_ptr<TlsContext>> TlsContext::create(const TlsIdentity& identity) {
  KVF_ASSIGN_OR_RETURN(const TlsLibrary* const library, TlsLibrary::get());
  OpenSslContext* const context = library->SSL_CTX_new(library->TLS_method());
  if (context == nullptr) return {Code::kResourceExhausted, "TLS: " + reason_of(*library, take_error(*library))};
  std::shared_ptr<TlsContext> made(new TlsContext(*library, context, identity));
  KVF_RETURN_IF_ERROR(made->configure());
  KVF_RETURN_IF_ERROR(made->by_certificate_ ? made->use_certificates(identity) : made->use_key());
  return made;
}

TlsContext::~TlsContext() { library_.SSL_CTX_free(context_); }

Status TlsContext::configure() {
  library_.SSL_CTX_ctrl(context_, openssl::kCtrlSetMinProto, openssl::kTls13, nullptr);
  library_.SSL_CTX_ctrl(context_, openssl::kCtrlSetMaxProto, openssl::kTls13, nullptr);
  library_.SSL_CTX_ctrl(context_, openssl::kCtrlMode, openssl::kModePartialWrite | openssl::kModeMovingWriteBuffer,
                        nullptr);
  library_.SSL_CTX_ctrl(context_, openssl::kCtrlSetSessionCacheMode, 0, nullptr);
  library_.SSL_CTX_set_num_tickets(context_, 0);  // no session is resumed: each proves itself anew
  library_.SSL_CTX_set_default_read_buffer_len(context_, kReadBufferBytes);
  // A stream that just ends is a lost peer for us, as without TLS: frames say how long they are.
  library_.SSL_CTX_set_options(context_,
                               openssl::kOptEnableKtls | openssl::kOptIgnoreUnexpectedEof | openssl::kOptNoTicket);
  if (library_.SSL_CTX_set_ciphersuites(context_, "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256") == 1)
    return {};
  return {Code::kUnsupported, "TLS: this OpenSSL has none of our cipher suites"};
}

Status TlsContext::use_certificates(const TlsIdentity& identity) {
  library_.ERR_clear_error();
  if (library_.SSL_CTX_use_certificate_chain_file(context_, identity.cert_file.c_str()) != 1) {
    return unusable(library_, "tls_cert_file", identity.cert_file);
  }
  if (library_.SSL_CTX_use_PrivateKey_file(context_, identity.key_file.c_str(), openssl::kFiletypePem) != 1 ||
      library_.SSL_CTX_check_private_key(context_) != 1) {
    return unusable(library_, "tls_key_file", identity.key_file);
  }
  if (library_.SSL_CTX_load_verify_locations(context_, identity.ca_file.c_str(), nullptr) != 1) {
    return unusable(library_, "tls_ca_file", identity.ca_file);
  }
  library_.SSL_CTX_set_verify(context_, openssl::kVerifyPeer | openssl::kVerifyFailIfNoPeerCert, nullptr);
  return {};
}

Status TlsContext::use_key() {
  library_.SSL_CTX_set_ex_data(context_, 0, this);
  library_.SSL_CTX_set_psk_client_callback(context_, client_key);
  library_.SSL_CTX_set_psk_server_callback(context_, server_key);
  return {};
}

unsigned TlsContext::client_key(OpenSslSession* session, const char* /*hint*/, char* identity, unsigned max_identity,
                                unsigned char* psk, unsigned max_psk) {
  // The library is loaded: it calls us.
  const TlsLibrary& library = **TlsLibrary::get();
  const auto* const self = static_cast<TlsContext*>(library.SSL_CTX_get_ex_data(library.SSL_get_SSL_CTX(session), 0));
  if (max_identity < sizeof(kPskIdentity) || max_psk < self->key_.size()) return 0;
  std::memcpy(identity, kPskIdentity, sizeof(kPskIdentity));
  std::ranges::copy(self->key_, psk);
  return static_cast<unsigned>(self->key_.size());
}

unsigned TlsContext::server_key(OpenSslSession* session, const char* identity, unsigned char* psk, unsigned max_psk) {
  const TlsLibrary& library = **TlsLibrary::get();
  const auto* const self = static_cast<TlsContext*>(library.SSL_CTX_get_ex_data(library.SSL_get_SSL_CTX(session), 0));
  if (std::string_view(identity) != kPskIdentity || max_psk < self->key_.size()) return 0;
  std::ranges::copy(self->key_, psk);
  return static_cast<unsigned>(self->key_.size());
}

Result<std::unique_ptr<TlsSession>> TlsContext::open(int fd, TlsSide side, const Wait& wait) const {
  NoSigpipe guard;
  library_.ERR_clear_error();
  OpenSslSession* const raw = library_.SSL_new(context_);
  if (raw == nullptr) return {Code::kResourceExhausted, "TLS: " + reason_of(library_, take_error(library_))};
  std::unique_ptr<TlsSession> session(new TlsSession(library_, raw, fd));
  // A server that ignores the key would have to show a certificate, and there is none that we would accept.
  if (!by_certificate_ && side == TlsSide::kConnect) library_.SSL_set_verify(raw, openssl::kVerifyPeer, nullptr);
  if (library_.SSL_set_fd(raw, fd) != 1) return {Code::kResourceExhausted, "TLS: " + reason_of(library_, 0)};
  Status done = session->handshake(side, wait);
  if (done.ok()) done = session->finish_handshake(by_certificate_);
  if (!done.ok()) return guard.check(std::move(done));
  return session;
}

}  // namespace kvferry
