// Endpoints and node ids as text: what parses writes itself in a form that parses to the same thing and the same text.
#include <string>
#include <string_view>

#include "fuzz_input.h"
#include "kvferry/endpoint.h"
#include "kvferry/node_id.h"

using namespace kvferry;

namespace {

void check_socket_address(const Endpoint& endpoint) {
  sockaddr_storage storage{};
  const auto length = endpoint.to_sockaddr(&storage);
  if (!length.ok()) {  // only a zone that this host does not have
    fuzz::require(endpoint.family() == Endpoint::Family::kIPv6 && endpoint.host().find('%') != std::string::npos);
    return;
  }
  const auto back = Endpoint::from_sockaddr(reinterpret_cast<const sockaddr*>(&storage), *length);
  fuzz::require(back.ok());
  fuzz::require(endpoint.host().find('%') != std::string::npos || *back == endpoint);
}

void check_node_id(std::string_view text) {
  const auto id = NodeId::parse(text);
  if (!id.ok()) return fuzz::require(id.status().code() == Code::kInvalidArgument);
  const auto again = NodeId::parse(id->to_string());
  fuzz::require(text.size() == 32 && again.ok() && *again == *id);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_node_id(text);
  const auto endpoint = Endpoint::parse(text);
  if (!endpoint.ok()) {
    fuzz::require(endpoint.status().code() == Code::kInvalidArgument);
    return 0;
  }
  const std::string written = endpoint->to_string();
  const auto again = Endpoint::parse(written);
  fuzz::require(again.ok() && *again == *endpoint && again->to_string() == written);
  check_socket_address(*endpoint);
  return 0;
}
