// Every message of the store: what is encoded decodes to the same, and nothing else decodes.
#include "store/messages.h"

#include <gtest/gtest.h>

#include <functional>

#include "store_samples.h"

namespace kvferry::store {
namespace {

template <typename Request>
void expect_strict(const Bytes& body, const std::function<bool(ByteView)>& accepts) {
  EXPECT_TRUE(accepts(body)) << type_name(Request::kType);
  for (std::size_t length = 0; length < body.size(); ++length) {
    EXPECT_FALSE(accepts(ByteView(body).first(length))) << type_name(Request::kType) << " cut to " << length;
  }
  Bytes longer = body;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(accepts(longer)) << type_name(Request::kType) << " with a byte too many";
}

template <typename Request>
void check(const Request& request, const Result<typename Request::Answer>& answer) {
  const Bytes asked = encode_request(7, request);
  const auto again = decode_request<Request>(asked);
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(encode_request(7, *again), asked);
  expect_strict<Request>(asked, [](ByteView body) { return decode_request<Request>(body).ok(); });

  const Bytes answered = encode_answer<Request>(7, answer);
  const auto header = decode_header(answered);
  ASSERT_TRUE(header.ok());
  EXPECT_TRUE(header->is_answer);
  EXPECT_EQ(header->type, Request::kType);
  EXPECT_EQ(header->request_id, 7u);
  const auto decoded = decode_answer<Request>(answered);
  EXPECT_EQ(decoded.status().code(), answer.status().code()) << decoded.status().to_string();
  if (decoded.ok()) {
    EXPECT_EQ(encode_answer<Request>(7, decoded), answered);
  }
  expect_strict<Request>(
      answered, [&](ByteView body) { return decode_answer<Request>(body).status().code() == answer.status().code(); });
}

TEST(StoreMessages, EachDecodesToWhatWasEncodedAndNothingElseDecodes) {
  testing::for_each_sample([](const auto& request, const auto& answer) { check(request, answer); });
}

TEST(StoreMessages, FailureCarriesItsReason) {
  const Bytes body = encode_answer<Pin>(3, Status(Code::kUnavailable, "draining"));
  const auto decoded = decode_answer<Pin>(body);
  EXPECT_EQ(decoded.status().code(), Code::kUnavailable);
  EXPECT_EQ(decoded.status().message(), "draining");
}

TEST(StoreMessages, HeaderRefusesWhatItDoesNotKnow) {
  const Bytes good = encode_request(1, Ping{});
  const auto changed = [&](std::size_t place, std::uint8_t value) {
    Bytes body = good;
    body[place] = static_cast<std::byte>(value);
    return decode_header(body).status().code();
  };
  EXPECT_EQ(changed(0, 'X'), Code::kProtocolError);
  EXPECT_EQ(changed(4, 2), Code::kUnsupported);
  EXPECT_EQ(changed(5, 0), Code::kProtocolError);
  EXPECT_EQ(changed(5, static_cast<std::uint8_t>(Type::kLast) + 1), Code::kProtocolError);
  EXPECT_EQ(changed(6, 2), Code::kProtocolError);
  EXPECT_EQ(changed(7, 1), Code::kProtocolError);
  EXPECT_FALSE(is_store_message(as_byte_view("\x81\xa4type")));
  EXPECT_FALSE(is_store_message({}));
}

TEST(StoreMessages, ALieAboutACountIsRefusedBeforeMemoryIsTaken) {
  Bytes body = encode_request(1, Exists{});
  ASSERT_EQ(body.size(), kMessageHeaderBytes + 4);
  body[kMessageHeaderBytes + 1] = std::byte{0x10};  // 4,096 ids that are not there
  EXPECT_EQ(decode_request<Exists>(body).status().code(), Code::kProtocolError);
  body[kMessageHeaderBytes + 3] = std::byte{0x7f};
  EXPECT_EQ(decode_request<Exists>(body).status().code(), Code::kProtocolError);
}

TEST(StoreMessages, TheLargestBatchesFitAMessage) {
  Lookup::Answer lookup;
  lookup.nodes.resize(8);
  lookup.results.resize(kMaxIds);
  for (Lookup::Done& done : lookup.results) done.holders = {0, 1, 2, 3};
  EXPECT_TRUE(decode_answer<Lookup>(encode_answer<Lookup>(1, lookup)).ok());

  NewObject object = testing::sample_object();
  object.key.assign(kMaxKeyBytes, 'k');
  object.tenant.assign(kMaxTenantBytes, 't');
  object.tags.assign(16, std::string(255, 't'));
  Pin::Answer pins;
  pins.results.resize(kMaxObjects);
  for (Pin::Done& done : pins.results) {
    done.places.resize(kMaxPlaces);
    done.object = object;
  }
  EXPECT_TRUE(decode_answer<Pin>(encode_answer<Pin>(1, pins)).ok());
  PutFrom put;
  put.items.resize(kMaxPutFrom);
  for (PutFrom::Item& item : put.items) {
    item.object = object;
    item.pieces.resize(kMaxPutPieces);
  }
  EXPECT_LE(encode_request(1, put).size(), 1u << 20);
}

TEST(StoreMessages, AnAnswerThatDoesNotFitIsAnErrorAndNoTornMessage) {
  const Bytes value(2u << 20);
  GetInline::Answer answer;
  answer.results.push_back({{}, {}, value});
  EXPECT_EQ(decode_answer<GetInline>(encode_answer<GetInline>(1, answer)).status().code(), Code::kInternal);
}

}  // namespace
}  // namespace kvferry::store
