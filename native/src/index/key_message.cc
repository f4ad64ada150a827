#include "index/key_message.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <tuple>

namespace kvferry::index {
namespace {

static_assert(std::endian::native == std::endian::little, "token buffers are hashed as they lie in memory");

constexpr std::uint32_t kEncoding = 1;
enum Kind : std::uint32_t { kRoot = 1, kBlock = 2, kEngineHash = 3 };
constexpr std::size_t kHeaderBytes = 16;
constexpr std::size_t kKeyBytes = 16;
constexpr std::int64_t kMaxPosition = std::int64_t{1} << 48;  // far from where sums overflow
constexpr std::string_view kSalt = "kvferry block keys 1";

enum Tag : std::uint8_t {
  kModel = 1,
  kRevision,
  kGeometry,
  kDtype,
  kLayout,
  kBlockTokens,
  kTensorParallel,
  kGroup,
  kLora,
  kRequestSalt,
  kTenant,
  kExtra = 255,
};

struct TextField {
  Tag tag;
  const char* name;
  const std::string& (*of)(const KeyIdentity&);
};

constexpr std::array kTexts{
    TextField{kModel, "model", [](const KeyIdentity& id) -> const std::string& { return id.model; }},
    TextField{kRevision, "revision", [](const KeyIdentity& id) -> const std::string& { return id.revision; }},
    TextField{kGeometry, "geometry", [](const KeyIdentity& id) -> const std::string& { return id.geometry; }},
    TextField{kDtype, "dtype", [](const KeyIdentity& id) -> const std::string& { return id.dtype; }},
    TextField{kLayout, "layout", [](const KeyIdentity& id) -> const std::string& { return id.layout; }},
    TextField{kLora, "lora", [](const KeyIdentity& id) -> const std::string& { return id.lora; }},
    TextField{kRequestSalt, "salt", [](const KeyIdentity& id) -> const std::string& { return id.salt; }},
    TextField{kTenant, "tenant", [](const KeyIdentity& id) -> const std::string& { return id.tenant; }},
};

Status check_text(std::string_view name, std::string_view text) {
  if (text.size() <= kMaxKeyFieldBytes) return {};
  return {Code::kInvalidArgument, std::string(name) + " of a block key's identity has " + std::to_string(text.size()) +
                                      " bytes; the limit is " + std::to_string(kMaxKeyFieldBytes)};
}

void put_number(ByteWriter& writer, Tag tag, std::uint32_t value) {
  writer.u8(tag);
  writer.u32(sizeof(value));
  writer.u32(value);
}

void put_text(ByteWriter& writer, Tag tag, std::string_view text) {
  if (text.empty()) return;
  writer.u8(tag);
  writer.text32(text);
}

void put_extra(ByteWriter& writer, const KeyIdentity& identity) {
  auto sorted = identity.extra;
  std::ranges::sort(sorted);
  for (const auto& [name, value] : sorted) {
    if (value.empty()) continue;
    writer.u8(kExtra);
    writer.u32(static_cast<std::uint32_t>(sizeof(std::uint32_t) + name.size() + value.size()));
    writer.text32(name);
    writer.raw(as_byte_view(value));
  }
}

template <typename Integer>
void store(std::byte* at, Integer value) {
  const Integer wire = little_endian(value);
  std::memcpy(at, &wire, sizeof(wire));
}

BlockKey first_half(const Sha256State& state) {
  BlockKey key;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::uint32_t word = __builtin_bswap32(state[i]);
    std::memcpy(key.bytes.data() + 4 * i, &word, sizeof(word));
  }
  return key;
}

BlockKey first_half(const Digest& digest) {
  BlockKey key;
  std::copy_n(digest.begin(), key.bytes.size(), key.bytes.begin());
  return key;
}

}  // namespace

Status check_identity(const KeyIdentity& identity) {
  if (identity.block_tokens == 0 || identity.block_tokens > kMaxBlockTokens) {
    return {Code::kInvalidArgument, "blocks of " + std::to_string(identity.block_tokens) + " tokens; 1 to " +
                                        std::to_string(kMaxBlockTokens) + " are possible"};
  }
  if (identity.tensor_parallel == 0) return {Code::kInvalidArgument, "tensor_parallel is 0; it counts parts"};
  for (const TextField& field : kTexts) KVF_RETURN_IF_ERROR(check_text(field.name, field.of(identity)));
  std::set<std::string_view> names;
  for (const auto& [name, value] : identity.extra) {
    KVF_RETURN_IF_ERROR(check_text("the name of an extra field", name));
    KVF_RETURN_IF_ERROR(check_text(name, value));
    if (!names.insert(name).second) {
      return {Code::kInvalidArgument, "the extra field '" + name + "' of a block key's identity is given twice"};
    }
  }
  return {};
}

Bytes encode_identity(const KeyIdentity& identity) {
  ByteWriter writer(512);
  writer.u32(kRoot);
  writer.u32(kEncoding);
  for (const TextField& field : kTexts) {
    if (field.tag == kLora) {  // fields come in the order of their tags
      put_number(writer, kBlockTokens, identity.block_tokens);
      put_number(writer, kTensorParallel, identity.tensor_parallel);
      put_number(writer, kGroup, identity.group);
    }
    put_text(writer, field.tag, field.of(identity));
  }
  put_extra(writer, identity);
  return writer.take();
}

Bytes encode_engine_hash(ByteView hash, const BlockKey& root) {
  ByteWriter writer(128);
  writer.u32(kEngineHash);
  writer.text32(as_text(hash));
  writer.raw(as_byte_view(root.bytes));
  return writer.take();
}

bool reaches(const ContentSpan& span, std::int64_t first) {
  return span.first_token >= first ||
         span.tokens > static_cast<std::uint64_t>(first) - static_cast<std::uint64_t>(span.first_token);
}

Status check_span(const ContentSpan& span) {
  if (span.id.empty()) return {Code::kInvalidArgument, "a content span has no id"};
  if (span.tokens == 0) return {Code::kInvalidArgument, "a content span has no tokens"};
  if (span.first_token < -kMaxPosition || span.first_token > kMaxPosition) {
    return {Code::kInvalidArgument, "a content span begins at token " + std::to_string(span.first_token)};
  }
  return check_text("the id of a content span", span.id);
}

Result<SpanCursor> SpanCursor::create(std::span<const ContentSpan> spans) {
  for (const ContentSpan& span : spans) KVF_RETURN_IF_ERROR(check_span(span));
  SpanCursor cursor;
  cursor.spans_.assign(spans.begin(), spans.end());
  std::ranges::sort(cursor.spans_, {}, [](const ContentSpan& span) {
    return std::tuple<std::int64_t, std::uint64_t, const std::string&>(span.first_token, span.tokens, span.id);
  });
  return cursor;
}

SpanCursor::Attachments SpanCursor::attachments(std::size_t first, std::size_t tokens) {
  const auto begin = static_cast<std::int64_t>(first);
  const std::int64_t end = begin + static_cast<std::int64_t>(tokens);
  while (done_ < spans_.size() && !reaches(spans_[done_], begin)) ++done_;
  encoded_.clear();
  ByteWriter writer(std::move(encoded_));
  std::uint32_t count = 0;
  for (std::size_t i = done_; i < spans_.size() && spans_[i].first_token < end; ++i) {
    const ContentSpan& span = spans_[i];
    if (!reaches(span, begin)) continue;
    const std::int64_t from = std::max(span.first_token, begin);
    const auto skipped = static_cast<std::uint64_t>(from) - static_cast<std::uint64_t>(span.first_token);
    const auto room = static_cast<std::uint64_t>(end - from);
    writer.u32(static_cast<std::uint32_t>(from - begin));
    writer.u32(static_cast<std::uint32_t>(std::min(span.tokens - skipped, room)));
    writer.u64(skipped);
    writer.text32(span.id);
    ++count;
  }
  encoded_ = writer.take();
  return {count, encoded_};
}

BlockMessage::BlockMessage(std::uint32_t block_tokens) : tokens_bytes_(block_tokens * sizeof(std::int32_t)) {
  resize(0);
  store(buffer_.data(), std::uint32_t{kBlock});
  store(buffer_.data() + 4, block_tokens);
}

void BlockMessage::resize(std::size_t attachment_bytes) {
  const std::size_t size = kHeaderBytes + tokens_bytes_ + attachment_bytes + kKeyBytes;
  if (size == size_) return;
  size_ = size;
  buffer_.resize((size + 9 + 63) / 64 * 64);
  std::fill(buffer_.begin() + static_cast<std::ptrdiff_t>(size), buffer_.end(), std::byte{0});
  buffer_[size] = std::byte{0x80};
  store(buffer_.data() + buffer_.size() - 8, __builtin_bswap64(std::uint64_t{8} * (64 + size)));
}

void BlockMessage::set_tokens(std::span<const std::int32_t> tokens) {
  std::memcpy(buffer_.data() + kHeaderBytes, tokens.data(), tokens_bytes_);
}

void BlockMessage::set_attachments(const SpanCursor::Attachments& attachments) {
  resize(attachments.bytes.size());
  store(buffer_.data() + 8, attachments.count);
  std::ranges::copy(attachments.bytes, buffer_.begin() + static_cast<std::ptrdiff_t>(kHeaderBytes + tokens_bytes_));
}

void BlockMessage::set_parent(const BlockKey& parent) {
  std::memcpy(buffer_.data() + size_ - kKeyBytes, parent.bytes.data(), kKeyBytes);
}

KeyedHash::KeyedHash(KeyAlgorithm algorithm, std::string_view secret, std::string_view tenant)
    : algorithm_(algorithm), keyed_state_(kSha256Start) {
  ByteWriter info(1 + tenant.size());
  info.u8(static_cast<std::uint8_t>(algorithm));
  info.raw(as_byte_view(tenant));
  hkdf_sha256(as_byte_view(kSalt), as_byte_view(secret), info.take(), secret_);
  const ByteView first = as_byte_view(secret_).first(64);
  keyed_.update(first);
  sha256_blocks(keyed_state_, first.data(), 1);
}

BlockKey KeyedHash::of(const BlockMessage& message) const {
  if (algorithm_ == KeyAlgorithm::kXxh3) return {xxh3_128(message.bytes(), secret_).bytes()};
  Sha256State state = keyed_state_;
  const ByteView padded = message.padded();
  sha256_blocks(state, padded.data(), padded.size() / 64);
  return first_half(state);
}

BlockKey KeyedHash::of_bytes(ByteView message) const {
  if (algorithm_ == KeyAlgorithm::kXxh3) return {xxh3_128(message, secret_).bytes()};
  return root(message);
}

BlockKey KeyedHash::root(ByteView identity) const {
  Sha256 hash = keyed_;
  hash.update(identity);
  return first_half(hash.finish());
}

}  // namespace kvferry::index
