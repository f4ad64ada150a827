// The bytes that are hashed into block keys (docs/keys.md), and the keyed hash itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/sha256.h"
#include "base/xxh3.h"
#include "kvferry/block_key.h"

namespace kvferry::index {

// kInvalidArgument names the field that is too long, zero or given twice.
Status check_identity(const KeyIdentity& identity);

Bytes encode_identity(const KeyIdentity& identity);
Bytes encode_engine_hash(ByteView hash, const BlockKey& root);

Status check_span(const ContentSpan& span);
// Whether any of the span's tokens is number `first` or later.
bool reaches(const ContentSpan& span, std::int64_t first);

// The spans of a call in their canonical order, asked for one block after the other.
class SpanCursor {
 public:
  static Result<SpanCursor> create(std::span<const ContentSpan> spans);
  struct Attachments {
    std::uint32_t count;
    ByteView bytes;  // until the next call
  };
  // What the block of `tokens` tokens from `first` on is attached to. Blocks must come in ascending order.
  Attachments attachments(std::size_t first, std::size_t tokens);

 private:
  struct Attached;
  std::vector<ContentSpan> spans_;  // by first token
  std::size_t done_ = 0;            // spans before this one end before the block
  Bytes encoded_;
};

// One block's message in a buffer that is used again for the next block, padded for SHA-256 in place.
class BlockMessage {
 public:
  explicit BlockMessage(std::uint32_t block_tokens);
  void set_tokens(std::span<const std::int32_t> tokens);
  void set_attachments(const SpanCursor::Attachments& attachments);
  void set_parent(const BlockKey& parent);  // last

  ByteView bytes() const { return ByteView(buffer_).first(size_); }
  // The message with SHA-256's padding for one that follows 64 other bytes; whole blocks of 64.
  ByteView padded() const { return buffer_; }

 private:
  void resize(std::size_t attachment_bytes);
  std::size_t tokens_bytes_;
  std::size_t size_ = 0;
  Bytes buffer_;
};

// The first 128 bits of SHA-256 after 64 secret bytes, or XXH3-128 under a secret of 192.
class KeyedHash {
 public:
  KeyedHash(KeyAlgorithm algorithm, std::string_view secret, std::string_view tenant);
  KeyAlgorithm algorithm() const { return algorithm_; }
  BlockKey of(const BlockMessage& message) const;
  BlockKey of_bytes(ByteView message) const;
  BlockKey root(ByteView identity) const;  // by SHA-256, whatever the algorithm

 private:
  KeyAlgorithm algorithm_;
  Xxh3Secret secret_{};
  Sha256 keyed_;             // after the first 64 bytes of the secret
  Sha256State keyed_state_;  // the same, as a bare state
};

}  // namespace kvferry::index
