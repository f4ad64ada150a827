#include "kvferry/block_key.h"

#include <utility>

#include "index/key_message.h"

namespace kvferry::index {

struct KeySpace::Secrets {
  KeyedHash hash;
  BlockKey root;
  std::uint32_t block_tokens;
};

std::string BlockKey::to_string() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const std::uint8_t byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

Result<std::shared_ptr<const KeySpace>> KeySpace::create(const KeyIdentity& identity, KeyAlgorithm algorithm,
                                                         std::string_view secret) {
  KVF_RETURN_IF_ERROR(check_identity(identity));
  if (algorithm != KeyAlgorithm::kSha256 && algorithm != KeyAlgorithm::kXxh3) {
    return {Code::kInvalidArgument, "key algorithm " + std::to_string(static_cast<int>(algorithm)) + " is unknown"};
  }
  const KeyedHash hash(algorithm, secret, identity.tenant);
  const BlockKey root = hash.root(encode_identity(identity));
  auto secrets = std::make_unique<const Secrets>(Secrets{hash, root, identity.block_tokens});
  return std::shared_ptr<const KeySpace>(new KeySpace(std::move(secrets)));
}

KeySpace::KeySpace(std::unique_ptr<const Secrets> secrets) : secrets_(std::move(secrets)) {}
KeySpace::~KeySpace() = default;

const BlockKey& KeySpace::root() const { return secrets_->root; }
std::uint32_t KeySpace::block_tokens() const { return secrets_->block_tokens; }
KeyAlgorithm KeySpace::algorithm() const { return secrets_->hash.algorithm(); }

Status KeySpace::keys(const BlockKey& parent, std::span<const std::int32_t> tokens, std::span<const ContentSpan> spans,
                      std::span<BlockKey> out) const {
  const std::size_t block = secrets_->block_tokens;
  if (out.size() != tokens.size() / block) {
    return {Code::kInvalidArgument, "room for " + std::to_string(out.size()) + " keys where " +
                                        std::to_string(tokens.size() / block) + " blocks are whole"};
  }
  KVF_ASSIGN_OR_RETURN(SpanCursor cursor, SpanCursor::create(spans));
  BlockMessage message(secrets_->block_tokens);
  const BlockKey* before = &parent;
  for (std::size_t i = 0; i < out.size(); ++i) {
    message.set_tokens(tokens.subspan(i * block, block));
    if (!spans.empty()) message.set_attachments(cursor.attachments(i * block, block));
    message.set_parent(*before);
    out[i] = secrets_->hash.of(message);
    before = &out[i];
  }
  return {};
}

BlockKey KeySpace::of_engine_hash(std::span<const std::byte> hash) const {
  return secrets_->hash.of_bytes(encode_engine_hash(hash, secrets_->root));
}

KeyChain::KeyChain(std::shared_ptr<const KeySpace> space, const BlockKey& parent, std::uint64_t position)
    : space_(std::move(space)), last_(parent), position_(position) {}

Status KeyChain::extend(std::span<const std::int32_t> tokens, std::span<const ContentSpan> spans,
                        std::vector<BlockKey>& out) {
  for (const ContentSpan& span : spans) KVF_RETURN_IF_ERROR(check_span(span));
  for (const ContentSpan& span : spans) {
    open_.push_back(span);
    open_.back().first_token += static_cast<std::int64_t>(pending_.size());
  }
  position_ += tokens.size();
  if (!pending_.empty() || tokens.size() < space_->block_tokens()) {
    pending_.insert(pending_.end(), tokens.begin(), tokens.end());
    if (pending_.size() < space_->block_tokens()) return {};
    const std::vector<std::int32_t> joined = std::move(pending_);
    return take_blocks(joined, out);
  }
  return take_blocks(tokens, out);  // whole prompts are not copied
}

Status KeyChain::take_blocks(std::span<const std::int32_t> tokens, std::vector<BlockKey>& out) {
  const std::size_t blocks = tokens.size() / space_->block_tokens();
  const std::size_t before = out.size();
  out.resize(before + blocks);
  KVF_RETURN_IF_ERROR(space_->keys(last_, tokens, open_, std::span(out).subspan(before)));
  last_ = out.back();
  const std::size_t used = blocks * space_->block_tokens();
  pending_ = {tokens.begin() + static_cast<std::ptrdiff_t>(used), tokens.end()};
  for (ContentSpan& span : open_) span.first_token -= static_cast<std::int64_t>(used);
  std::erase_if(open_, [](const ContentSpan& span) { return !reaches(span, 0); });
  return {};
}

}  // namespace kvferry::index
