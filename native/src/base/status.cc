#include "kvferry/status.h"

#include <array>
#include <system_error>

namespace kvferry {
namespace {

constexpr std::array<std::string_view, 18> kCodeNames{"ok",
                                                      "invalid_argument",
                                                      "not_found",
                                                      "out_of_range",
                                                      "permission_denied",
                                                      "stale",
                                                      "unavailable",
                                                      "peer_lost",
                                                      "deadline_exceeded",
                                                      "cancelled",
                                                      "protocol_error",
                                                      "identity_mismatch",
                                                      "unauthenticated",
                                                      "resource_exhausted",
                                                      "unsupported",
                                                      "data_corrupt",
                                                      "internal",
                                                      "conflict"};

}  // namespace

std::string_view code_name(Code code) {
  const auto index = static_cast<std::size_t>(code);
  return index < kCodeNames.size() ? kCodeNames[index] : "unknown";
}

const std::string& Status::message() const {
  static const std::string empty;
  return rep_ ? rep_->message : empty;
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  return std::string(code_name(code())) + ": " + message();
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return *this;
  return {code(), std::string(context) + ": " + message()};
}

Status errno_status(Code code, std::string_view what, int error) {
  return {code,
          std::string(what) + ": " + std::generic_category().message(error) + " (errno " + std::to_string(error) + ")"};
}

}  // namespace kvferry
