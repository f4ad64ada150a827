// TLS 1.3 on connected stream sockets, by OpenSSL (base/tls_library.h). Both ends prove themselves: by a key that both
// hold, or by certificates of one authority. Waits as base/socket.h does: a deadline, an interrupt, never SIGPIPE.
#pragma once

#include <sys/uio.h>

#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/sha256.h"
#include "base/socket.h"
#include "base/tls_library.h"
#include "kvferry/status.h"

namespace kvferry {

enum class TlsSide { kConnect, kAccept };

struct TlsIdentity {      // certificates if cert_file is not empty, else the key
  std::string cert_file;  // PEM, this node's certificate first, then those between it and the authority
  std::string key_file;   // PEM, of the first certificate
  std::string ca_file;    // PEM: whose certificates are accepted, from either side
  Digest key{};           // shared by all nodes
};

// The encrypted side of one socket. One thread at a time may send and another receive.
class TlsSession {
 public:
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  Status send_vectored(std::span<iovec> segments, const Wait& wait);
  Status recv_vectored(std::span<iovec> segments, const Wait& wait);
  Result<std::size_t> recv_some(std::span<const iovec> segments, const Wait& wait);
  Status wait_readable(const Wait& wait);
  const Digest& binding() const { return binding_; }  // a secret of this session that both ends know and nobody else
  const std::string& description() const { return description_; }  // "TLS 1.3 with a shared key, by this process"

 private:
  friend class TlsContext;
  struct Step {
    std::size_t moved = 0;
    short events = 0;  // what to wait for if nothing moved
  };
  TlsSession(const TlsLibrary& library, OpenSslSession* session, int fd)
      : library_(library), session_(session), fd_(fd) {}
  Status handshake(TlsSide side, const Wait& wait);
  Status finish_handshake(bool by_certificate);
  Result<Step> step(int result, std::size_t moved, std::string_view doing);  // mutex_ held since the call
  Result<Step> write_some(std::span<const iovec> segments, MemoryGate* gate);
  Result<Step> read_some(const iovec& segment, MemoryGate* gate);

  static constexpr std::size_t kRecordBytes = 16u << 10;  // RFC 8446, section 5.1

  const TlsLibrary& library_;
  std::mutex mutex_;  // OpenSSL's sessions are for one thread at a time; never held while waiting
  OpenSslSession* const session_;
  const int fd_;
  std::array<std::byte, kRecordBytes> gathered_{};  // small segments, to make one record of; for the sender
  Status receiving_failed_;                         // for the receiver
  Digest binding_{};
  std::string description_;
};

// What all connections of a node share. Thread-safe.
class TlsContext {
 public:
  // kUnsupported: no library; kInvalidArgument: files that cannot be used, with OpenSSL's reason.
  static Result<std::shared_ptr<TlsContext>> create(const TlsIdentity& identity);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // The handshake on `fd`, which must outlive the session. kUnauthenticated: one end did not accept the other;
  // kUnsupported: the peer does not speak TLS.
  Result<std::unique_ptr<TlsSession>> open(int fd, TlsSide side, const Wait& wait) const;

 private:
  TlsContext(const TlsLibrary& library, OpenSslContext* context, const TlsIdentity& identity)
      : library_(library), context_(context), by_certificate_(!identity.cert_file.empty()), key_(identity.key) {}
  Status configure();
  Status use_certificates(const TlsIdentity& identity);
  Status use_key();
  static unsigned client_key(OpenSslSession*, const char*, char*, unsigned, unsigned char*, unsigned);
  static unsigned server_key(OpenSslSession*, const char*, unsigned char*, unsigned);

  const TlsLibrary& library_;
  OpenSslContext* const context_;
  const bool by_certificate_;
  const Digest key_;
};

}  // namespace kvferry
