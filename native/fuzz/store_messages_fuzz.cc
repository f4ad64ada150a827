// Every message of the store. The format is canonical: what is accepted encodes back to the same bytes.
#include <algorithm>

#include "fuzz_input.h"
#include "store/messages.h"

using namespace kvferry;
using namespace kvferry::store;

namespace {

template <typename Request>
void check(const MessageHeader& header, ByteView body) {
  if (header.is_answer) {
    const auto answer = decode_answer<Request>(body);
    // A refusal has the code that its sender chose.
    if (answer.status().code() == Code::kProtocolError) return;
    fuzz::require(std::ranges::equal(encode_answer<Request>(header.request_id, answer), body));
    return;
  }
  const auto request = decode_request<Request>(body);
  if (!request.ok()) return fuzz::require(request.status().code() == Code::kProtocolError);
  fuzz::require(std::ranges::equal(encode_request(header.request_id, *request), body));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteView body = fuzz::view(data, size);
  const auto header = decode_header(body);
  fuzz::require(!header.ok() || is_store_message(body));
  if (!header.ok()) return 0;
  switch (header->type) {
#define KVF_CHECK(Request)         \
  case Request::kType:             \
    check<Request>(*header, body); \
    break;
    KVF_STORE_REQUESTS(KVF_CHECK)
#undef KVF_CHECK
  }
  return 0;
}
