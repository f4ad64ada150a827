#include <string>
#include <type_traits>
#include <utility>

#include "handles.h"

namespace kvferry::c_api {
namespace {

thread_local Status last_error;

static_assert(static_cast<int>(Code::kInvalidArgument) == KVF_INVALID_ARGUMENT);
static_assert(static_cast<int>(Code::kStale) == KVF_STALE);
static_assert(static_cast<int>(Code::kCancelled) == KVF_CANCELLED);
static_assert(static_cast<int>(Code::kConflict) == KVF_CONFLICT, "kvferry.h lists the codes in another order");

}  // namespace

kvf_code report(const Status& status) {
  if (!status.ok()) last_error = status;
  return static_cast<kvf_code>(status.code());
}

kvf_code report(Code code, std::string message) { return report(Status(code, std::move(message))); }

kvf_code missing_argument(const char* function) {
  return report(Code::kInvalidArgument, std::string(function) + ": an argument that is needed is NULL");
}

}  // namespace kvferry::c_api

extern "C" {

const char* kvf_version(void) { return KVFERRY_VERSION; }

const char* kvf_code_name(kvf_code code) {
  const auto known = code >= KVF_OK && code <= KVF_INTERNAL;
  return known ? kvferry::code_name(static_cast<kvferry::Code>(code)).data() : "unknown";
}

const char* kvf_error_message(void) { return kvferry::c_api::last_error.message().c_str(); }

}  // extern "C"
