#include "base/tls_library.h"

#include <dlfcn.h>

#include <string_view>

namespace kvferry {
namespace {

constexpr unsigned long kOpenSsl3 = 0x30000000;
constexpr std::string_view kAdvice =
    "; TLS needs OpenSSL 3 (libssl.so.3 and libcrypto.so.3): install it (Debian, Ubuntu: apt-get install libssl3; "
    "Fedora, RHEL: dnf install openssl-libs), or switch transfer.tls off on both sides";

Status missing(std::string_view what) { return {Code::kUnsupported, std::string(what) + std::string(kAdvice)}; }

// Handles are never closed: other parts of the process may use the same library.
Result<void*> open_library(const char* name) {
  if (void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return handle;
  const char* const why = ::dlerror();
  return missing(why != nullptr ? why : name);
}

class Binder {
 public:
  explicit Binder(void* library) : library_(library) {}

  template <typename Function>
  void bind(Function*& target, const char* name) {
    target = reinterpret_cast<Function*>(::dlsym(library_, name));
    if (target == nullptr && missing_.empty()) missing_ = name;
  }
  Status status() const { return missing_.empty() ? Status() : missing("the library lacks " + missing_); }

 private:
  void* const library_;
  std::string missing_;
};

#define KVF_BIND(name) binder.bind(out->name, #name)

Status bind_setup(void* ssl, TlsLibrary* out) {
  Binder binder(ssl);
  KVF_BIND(TLS_method);
  KVF_BIND(SSL_CTX_new);
  KVF_BIND(SSL_CTX_free);
  KVF_BIND(SSL_CTX_ctrl);
  KVF_BIND(SSL_CTX_set_options);
  KVF_BIND(SSL_CTX_set_ciphersuites);
  KVF_BIND(SSL_CTX_set_num_tickets);
  KVF_BIND(SSL_CTX_use_certificate_chain_file);
  KVF_BIND(SSL_CTX_use_PrivateKey_file);
  KVF_BIND(SSL_CTX_check_private_key);
  KVF_BIND(SSL_CTX_load_verify_locations);
  KVF_BIND(SSL_CTX_set_verify);
  KVF_BIND(SSL_CTX_set_psk_client_callback);
  KVF_BIND(SSL_CTX_set_psk_server_callback);
  KVF_BIND(SSL_CTX_set_default_read_buffer_len);
  KVF_BIND(SSL_CTX_set_ex_data);
  KVF_BIND(SSL_CTX_get_ex_data);
  return binder.status();
}

Status bind_sessions(void* ssl, TlsLibrary* out) {
  Binder binder(ssl);
  KVF_BIND(SSL_new);
  KVF_BIND(SSL_free);
  KVF_BIND(SSL_get_SSL_CTX);
  KVF_BIND(SSL_ctrl);
  KVF_BIND(SSL_set_verify);
  KVF_BIND(SSL_session_reused);
  KVF_BIND(SSL_set_fd);
  KVF_BIND(SSL_connect);
  KVF_BIND(SSL_accept);
  KVF_BIND(SSL_read_ex);
  KVF_BIND(SSL_write_ex);
  KVF_BIND(SSL_get_error);
  KVF_BIND(SSL_has_pending);
  KVF_BIND(SSL_get_verify_result);
  KVF_BIND(SSL_get_rbio);
  KVF_BIND(SSL_get_wbio);
  KVF_BIND(SSL_export_keying_material);
  return binder.status();
}

Status bind_crypto(void* crypto, TlsLibrary* out) {
  Binder binder(crypto);
  unsigned long (*number)() = nullptr;
  const char* (*version)(int) = nullptr;
  binder.bind(number, "OpenSSL_version_num");
  binder.bind(version, "OpenSSL_version");
  KVF_BIND(BIO_ctrl);
  KVF_BIND(ERR_get_error);
  KVF_BIND(ERR_clear_error);
  KVF_BIND(ERR_reason_error_string);
  KVF_BIND(X509_verify_cert_error_string);
  KVF_RETURN_IF_ERROR(binder.status());
  out->version = version(0);
  return number() >= kOpenSsl3 ? Status() : missing("found " + out->version);
}

#undef KVF_BIND

}  // namespace

Result<TlsLibrary> TlsLibrary::open(const char* ssl_name, const char* crypto_name) {
  KVF_ASSIGN_OR_RETURN(void* const crypto, open_library(crypto_name));
  KVF_ASSIGN_OR_RETURN(void* const ssl, open_library(ssl_name));
  TlsLibrary library;
  KVF_RETURN_IF_ERROR(bind_crypto(crypto, &library));
  KVF_RETURN_IF_ERROR(bind_setup(ssl, &library));
  KVF_RETURN_IF_ERROR(bind_sessions(ssl, &library));
  return library;
}

Result<const TlsLibrary*> TlsLibrary::get() {
  static const auto* const library = new Result<TlsLibrary>(open("libssl.so.3", "libcrypto.so.3"));
  if (!library->ok()) return library->status();
  return &**library;
}

}  // namespace kvferry
