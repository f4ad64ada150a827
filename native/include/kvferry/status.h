// The one error type of the native code. Cheap to copy; null when OK. Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kvferry/export.h"

namespace kvferry {

// What kind of failure it is. Each code maps to one Python exception class (core/kvferry/errors.py).
enum class Code : std::uint8_t {
  kOk = 0,
  kInvalidArgument,    // the caller's value is wrong; retrying cannot help
  kNotFound,           // no such region, peer, transfer
  kOutOfRange,         // offset + length leaves the region
  kPermissionDenied,   // access rights of a region, or the kernel, forbid it
  kStale,              // right id, older generation: the region was replaced
  kUnavailable,        // peer or transport cannot be reached now; another path may work
  kPeerLost,           // the peer went away while work was under way
  kDeadlineExceeded,   // the time allowed ran out
  kCancelled,          // the owner cancelled it
  kProtocolError,      // the peer sent something that the wire format does not allow
  kIdentityMismatch,   // the address is held by another node than expected
  kUnauthenticated,    // the cluster secret of the two sides differs or is missing
  kResourceExhausted,  // a limit was reached (memory, connections, descriptors)
  kUnsupported,        // asked for something that this build, host or pair cannot do
  kDataCorrupt,        // bytes arrived but their checksum is wrong
  kInternal,           // a bug in KVFerry
  kConflict,           // other bytes are stored under that key, and objects are written once
};

KVFERRY_API std::string_view code_name(Code code);

class [[nodiscard]] KVFERRY_API Status {
 public:
  Status() = default;
  // `message` says: what, which peer or key, how long, what to do.
  Status(Code code, std::string message)
      : rep_(code == Code::kOk ? nullptr : std::make_shared<const Rep>(Rep{code, std::move(message)})) {}

  static Status ok_status() { return {}; }
  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ ? rep_->code : Code::kOk; }
  const std::string& message() const;
  std::string to_string() const;  // "peer_lost: message"
  // The same code with `context` and ": " put before the message; OK stays OK.
  Status with_context(std::string_view context) const;

 private:
  struct Rep {
    Code code;
    std::string message;
  };
  std::shared_ptr<const Rep> rep_;
};

// Status{code, "<what>: <strerror(error)> (errno <n>)"}; picks nothing by itself: the caller knows the code.
KVFERRY_API Status errno_status(Code code, std::string_view what, int error);

// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit on purpose
  Result(Code code, std::string message) : status_(code, std::move(message)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

#define KVF_RETURN_IF_ERROR(expr)                                                      \
  do {                                                                                 \
    if (::kvferry::Status kvf_status_ = (expr); !kvf_status_.ok()) return kvf_status_; \
  } while (0)

// KVF_ASSIGN_OR_RETURN(auto x, f()): x becomes the value of the Result, or its Status is returned.
#define KVF_ASSIGN_OR_RETURN(declaration, expr) \
  KVF_ASSIGN_OR_RETURN_AT_(KVF_CONCAT_(kvf_result_, __LINE__), declaration, expr)
#define KVF_CONCAT_(a, b) KVF_CONCAT2_(a, b)
#define KVF_CONCAT2_(a, b) a##b
#define KVF_ASSIGN_OR_RETURN_AT_(result, declaration, expr) \
  auto result = (expr);                                     \
  if (!result.ok()) return result.status();                 \
  declaration = std::move(result).value()

}  // namespace kvferry
