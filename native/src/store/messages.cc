#include "store/messages.h"

#include <array>

#include "base/limits.h"

namespace kvferry::store {
namespace {

constexpr std::uint8_t kAnswerFlag = 1;

void put_header(Encoder& encoder, const MessageHeader& header) {
  encoder.all(kMessageMagic, kMessageVersion, header.type, header.is_answer ? kAnswerFlag : std::uint8_t{0},
              std::uint8_t{0}, header.request_id);
}

// Room for most messages at once; values come on top.
constexpr std::size_t kUsualBytes = 256;

Status check_size(const Bytes& body, Type type) {
  if (body.size() <= kMaxMessageBytes) return {};
  return {Code::kInternal, std::string(type_name(type)) + " of " + std::to_string(body.size()) + " bytes"};
}

Result<Decoder> after_header(ByteView body, Type type, bool is_answer) {
  KVF_ASSIGN_OR_RETURN(const MessageHeader header, decode_header(body));
  if (header.type != type || header.is_answer != is_answer) {
    return {Code::kProtocolError, std::string(type_name(header.type)) + " instead of " + std::string(type_name(type))};
  }
  return Decoder(body.subspan(kMessageHeaderBytes));
}

}  // namespace

std::string_view type_name(Type type) {
  constexpr std::array<std::string_view, static_cast<std::size_t>(Type::kLast) + 1> kNames{
      "NONE",   "ATTACH",   "DETACH",   "MEMBER_LIST", "MEMBERS", "PING",  "PUT_INLINE", "RESERVE",
      "COMMIT", "ABORT",    "PUT_FROM", "GET_INLINE",  "PIN",     "UNPIN", "LOOKUP",     "EXISTS",
      "MATCH",  "FIND",     "ANNOUNCE", "RETRACT",     "REMOVE",  "DROP",  "PULL",       "PREFETCH",
      "LIST",   "WITH_TAG", "STATS",    "DRAIN",       "REMOVED"};
  const auto index = static_cast<std::size_t>(type);
  return index < kNames.size() ? kNames[index] : kNames[0];
}

bool is_store_message(ByteView body) { return ByteReader(body).u32() == kMessageMagic; }

Result<MessageHeader> decode_header(ByteView body) {
  ByteReader reader(body);
  MessageHeader header;
  if (reader.u32() != kMessageMagic) reader.fail("not a message of the store");
  const std::uint8_t version = reader.u8();
  if (reader.ok() && version != kMessageVersion) {
    return {Code::kUnsupported, "version " + std::to_string(version) + " of the store's messages; this node speaks " +
                                    std::to_string(kMessageVersion)};
  }
  const std::uint8_t type = reader.u8();
  if (type == 0 || type > static_cast<std::uint8_t>(Type::kLast)) reader.fail("unknown type " + std::to_string(type));
  const std::uint8_t flags = reader.u8();
  if (flags > kAnswerFlag) reader.fail("unknown flags");
  reader.reserved(1);
  header = {static_cast<Type>(type), flags == kAnswerFlag, reader.u64()};
  if (reader.ok() && header.is_answer && header.request_id == 0) reader.fail("an answer to nothing");
  if (!reader.ok()) {
    (void)reader.raw(reader.remaining());
    return reader.finish("store message");
  }
  return header;
}

template <typename Request>
Bytes encode_request(std::uint64_t request_id, const Request& request) {
  Encoder encoder(kUsualBytes);
  put_header(encoder, {Request::kType, false, request_id});
  encoder.field(request);
  return encoder.take();
}

template <typename Request>
Result<Request> decode_request(ByteView body) {
  KVF_ASSIGN_OR_RETURN(Decoder decoder, after_header(body, Request::kType, false));
  Request out{};
  decoder.field(out);
  KVF_RETURN_IF_ERROR(decoder.finish(type_name(Request::kType)));
  return out;
}

template <typename Request>
Bytes encode_answer(std::uint64_t request_id, const Result<typename Request::Answer>& answer) {
  const MessageHeader header{Request::kType, true, request_id};
  if (!answer.ok()) return encode_refusal(header, answer.status());
  Encoder encoder(kUsualBytes);
  put_header(encoder, header);
  encoder.field(Status());
  encoder.field(*answer);
  Bytes body = encoder.take();
  if (const Status fits = check_size(body, Request::kType); !fits.ok()) return encode_refusal(header, fits);
  return body;
}

template <typename Request>
Result<typename Request::Answer> decode_answer(ByteView body) {
  KVF_ASSIGN_OR_RETURN(Decoder decoder, after_header(body, Request::kType, true));
  Status status;
  decoder.field(status);
  typename Request::Answer out{};
  if (status.ok()) decoder.field(out);
  KVF_RETURN_IF_ERROR(decoder.finish(type_name(Request::kType)));
  if (!status.ok()) return status;
  return out;
}

Bytes encode_refusal(const MessageHeader& request, const Status& why) {
  Encoder encoder(kUsualBytes);
  put_header(encoder, {request.type, true, request.request_id});
  encoder.field(why);
  return encoder.take();
}

#define KVF_INSTANTIATE(Request)                                                                        \
  template Bytes encode_request<Request>(std::uint64_t, const Request&);                                \
  template Result<Request> decode_request<Request>(ByteView);                                           \
  template Bytes encode_answer<Request>(std::uint64_t, const Result<typename Request::Answer>& answer); \
  template Result<typename Request::Answer> decode_answer<Request>(ByteView);
KVF_STORE_REQUESTS(KVF_INSTANTIATE)
#undef KVF_INSTANTIATE

}  // namespace kvferry::store
