// OpenSSL 3, found at run time: the module links nothing for TLS, and a host without the library works without TLS.
// The declarations are ours, after the manual pages of OpenSSL 3.0 (https://docs.openssl.org/3.0/man3/); a test
// compares the constants with the headers where those are installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kvferry/status.h"

namespace kvferry {

struct OpenSslContext;  // SSL_CTX
struct OpenSslSession;  // SSL
struct OpenSslMethod;   // SSL_METHOD
struct OpenSslBio;      // BIO

namespace openssl {

inline constexpr int kTls13 = 0x0304;
inline constexpr int kFiletypePem = 1;
inline constexpr int kVerifyPeer = 1, kVerifyFailIfNoPeerCert = 2;
inline constexpr int kCtrlMode = 33, kCtrlSetReadAhead = 41, kCtrlSetSessionCacheMode = 44;
inline constexpr int kCtrlSetMinProto = 123, kCtrlSetMaxProto = 124;
inline constexpr long kModePartialWrite = 1, kModeMovingWriteBuffer = 2;
inline constexpr std::uint64_t kOptEnableKtls = 1u << 3, kOptIgnoreUnexpectedEof = 1u << 7, kOptNoTicket = 1u << 14;
inline constexpr int kErrorNone = 0, kErrorSsl = 1, kErrorWantRead = 2, kErrorWantWrite = 3, kErrorSyscall = 5,
                     kErrorZeroReturn = 6;
inline constexpr int kBioGetKtlsSend = 73, kBioGetKtlsRecv = 76;
inline constexpr unsigned long kReasonMask = 0x7fffff, kWrongVersionNumber = 267;
inline constexpr unsigned long kSystemError = 0x80000000;  // the rest is an errno
inline constexpr unsigned long kAlertReasons = 1000;       // reasons above it: an alert that the peer sent

using PskClient = unsigned (*)(OpenSslSession*, const char* hint, char* identity, unsigned max_identity,
                               unsigned char* psk, unsigned max_psk);
using PskServer = unsigned (*)(OpenSslSession*, const char* identity, unsigned char* psk, unsigned max_psk);

}  // namespace openssl

struct TlsLibrary {
  std::string version;  // "OpenSSL 3.0.19 27 Jan 2026"

  const OpenSslMethod* (*TLS_method)() = nullptr;
  OpenSslContext* (*SSL_CTX_new)(const OpenSslMethod*) = nullptr;
  void (*SSL_CTX_free)(OpenSslContext*) = nullptr;
  long (*SSL_CTX_ctrl)(OpenSslContext*, int command, long number, void* pointer) = nullptr;
  std::uint64_t (*SSL_CTX_set_options)(OpenSslContext*, std::uint64_t) = nullptr;
  int (*SSL_CTX_set_ciphersuites)(OpenSslContext*, const char*) = nullptr;
  int (*SSL_CTX_set_num_tickets)(OpenSslContext*, std::size_t) = nullptr;
  int (*SSL_CTX_use_certificate_chain_file)(OpenSslContext*, const char*) = nullptr;
  int (*SSL_CTX_use_PrivateKey_file)(OpenSslContext*, const char*, int type) = nullptr;
  int (*SSL_CTX_check_private_key)(const OpenSslContext*) = nullptr;
  int (*SSL_CTX_load_verify_locations)(OpenSslContext*, const char* file, const char* folder) = nullptr;
  void (*SSL_CTX_set_verify)(OpenSslContext*, int mode, int (*callback)(int, void*)) = nullptr;
  void (*SSL_CTX_set_psk_client_callback)(OpenSslContext*, openssl::PskClient) = nullptr;
  void (*SSL_CTX_set_psk_server_callback)(OpenSslContext*, openssl::PskServer) = nullptr;
  void (*SSL_CTX_set_default_read_buffer_len)(OpenSslContext*, std::size_t) = nullptr;
  int (*SSL_CTX_set_ex_data)(OpenSslContext*, int index, void*) = nullptr;
  void* (*SSL_CTX_get_ex_data)(const OpenSslContext*, int index) = nullptr;
  OpenSslSession* (*SSL_new)(OpenSslContext*) = nullptr;
  void (*SSL_free)(OpenSslSession*) = nullptr;
  OpenSslContext* (*SSL_get_SSL_CTX)(const OpenSslSession*) = nullptr;
  long (*SSL_ctrl)(OpenSslSession*, int command, long number, void* pointer) = nullptr;
  void (*SSL_set_verify)(OpenSslSession*, int mode, int (*callback)(int, void*)) = nullptr;
  int (*SSL_session_reused)(const OpenSslSession*) = nullptr;
  int (*SSL_set_fd)(OpenSslSession*, int) = nullptr;
  int (*SSL_connect)(OpenSslSession*) = nullptr;
  int (*SSL_accept)(OpenSslSession*) = nullptr;
  int (*SSL_read_ex)(OpenSslSession*, void*, std::size_t, std::size_t* done) = nullptr;
  int (*SSL_write_ex)(OpenSslSession*, const void*, std::size_t, std::size_t* done) = nullptr;
  int (*SSL_get_error)(const OpenSslSession*, int result) = nullptr;
  int (*SSL_has_pending)(const OpenSslSession*) = nullptr;
  long (*SSL_get_verify_result)(const OpenSslSession*) = nullptr;
  OpenSslBio* (*SSL_get_rbio)(const OpenSslSession*) = nullptr;
  OpenSslBio* (*SSL_get_wbio)(const OpenSslSession*) = nullptr;
  int (*SSL_export_keying_material)(OpenSslSession*, unsigned char* out, std::size_t, const char* label, std::size_t,
                                    const unsigned char* context, std::size_t, int use_context) = nullptr;
  long (*BIO_ctrl)(OpenSslBio*, int command, long number, void* pointer) = nullptr;
  unsigned long (*ERR_get_error)() = nullptr;
  void (*ERR_clear_error)() = nullptr;
  const char* (*ERR_reason_error_string)(unsigned long) = nullptr;
  const char* (*X509_verify_cert_error_string)(long) = nullptr;

  // Loaded by the first caller and kept to the end of the process. kUnsupported: not found, or too old, with what to
  // install. Thread-safe.
  static Result<const TlsLibrary*> get();
  // Under other names: for tests.
  static Result<TlsLibrary> open(const char* ssl_name, const char* crypto_name);
};

}  // namespace kvferry
