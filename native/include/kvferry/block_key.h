// What a KV block is called: 128 bits that stand for everything its bytes depend on. The encoding is docs/keys.md, byte
// by byte, with test vectors; the same in every process, host and version of KVFerry that says encoding 1.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvferry/export.h"
#include "kvferry/status.h"

namespace kvferry::index {

struct KVFERRY_API BlockKey {
  std::array<std::uint8_t, 16> bytes{};

  std::string to_string() const;  // 32 lower-case hex digits
  auto operator<=>(const BlockKey&) const = default;
};

// kSha256 is the default: nobody can find two prompts of one key. kXxh3 takes a sixth of the time; whoever does not
// know the secret cannot aim at collisions, but it is not a cryptographic hash: for clusters whose prompts are trusted.
enum class KeyAlgorithm : std::uint8_t { kSha256 = 1, kXxh3 = 2 };

// Everything besides tokens that the bytes of a block depend on, and who may share it. Texts may hold any bytes, up to
// kMaxKeyFieldBytes each; an empty one is the same as none.
struct KeyIdentity {
  std::string model;
  std::string revision;
  std::string geometry;  // digest of the KV geometry, or any text that stands for it
  std::string dtype;
  std::string layout;
  std::uint32_t block_tokens = 16;                         // 1 to kMaxBlockTokens
  std::uint32_t tensor_parallel = 1;                       // into how many parts the heads of a block are cut
  std::uint32_t group = 0;                                 // KV cache group of the model
  std::string lora;                                        // the adapter's content or name and revision
  std::string salt;                                        // of the request: those with another salt share nothing
  std::string tenant;                                      // whoever shares nothing with others
  std::vector<std::pair<std::string, std::string>> extra;  // further names and values, in any order, each name once
};

inline constexpr std::size_t kMaxKeyFieldBytes = 64u << 10;
inline constexpr std::uint32_t kMaxBlockTokens = 64u << 10;

// Tokens that stand for something else, such as an image: its id goes into the key of every block that it touches.
struct ContentSpan {
  std::int64_t first_token = 0;  // relative to the first token of the call; negative if it began earlier
  std::uint64_t tokens = 0;
  std::string id;  // a digest of the content: not empty, at most kMaxKeyFieldBytes
};

// The keys of one identity. Immutable: any number of threads may use it.
class KVFERRY_API KeySpace {
 public:
  // `secret` (any length; "" for none) keys the hash: without it nobody can compute keys, or aim at collisions.
  // kInvalidArgument names the field that is out of its limits.
  static Result<std::shared_ptr<const KeySpace>> create(const KeyIdentity& identity,
                                                        KeyAlgorithm algorithm = KeyAlgorithm::kSha256,
                                                        std::string_view secret = {});
  ~KeySpace();
  KeySpace(const KeySpace&) = delete;
  KeySpace& operator=(const KeySpace&) = delete;

  const BlockKey& root() const;  // the parent of a prompt's first block
  std::uint32_t block_tokens() const;
  KeyAlgorithm algorithm() const;

  // One key for each whole block of `tokens`, chained from `parent`; the rest of the tokens is left. `out` must have
  // tokens.size() / block_tokens() places. kInvalidArgument for an `out` of another size or a span without id or
  // tokens.
  Status keys(const BlockKey& parent, std::span<const std::int32_t> tokens, std::span<const ContentSpan> spans,
              std::span<BlockKey> out) const;

  // The key of a block that an engine has already named: `hash` is its own block hash, which must stand for the tokens
  // and all before them.
  BlockKey of_engine_hash(std::span<const std::byte> hash) const;

 private:
  struct [[gnu::visibility("hidden")]] Secrets;
  explicit KeySpace(std::unique_ptr<const Secrets> secrets);
  std::unique_ptr<const Secrets> secrets_;
};

// Keys of a sequence that grows, token by token or in any pieces. Used by one thread at a time.
class KVFERRY_API KeyChain {
 public:
  // Continues after the block `parent`, which ends before token number `position`.
  KeyChain(std::shared_ptr<const KeySpace> space, const BlockKey& parent, std::uint64_t position);

  // Appends the keys of the blocks that these tokens complete. `spans` count from the first token of these, too; one
  // that goes on after them is remembered. On an error nothing has changed.
  Status extend(std::span<const std::int32_t> tokens, std::span<const ContentSpan> spans, std::vector<BlockKey>& out);

  const BlockKey& last() const { return last_; }  // of the last whole block, or the parent given
  std::uint64_t position() const { return position_; }
  std::size_t pending_tokens() const { return pending_.size(); }  // tokens after the last whole block

 private:
  // Of at least one block; what is left becomes pending.
  Status take_blocks(std::span<const std::int32_t> tokens, std::vector<BlockKey>& out);

  std::shared_ptr<const KeySpace> space_;
  BlockKey last_;
  std::uint64_t position_;  // of the next token
  std::vector<std::int32_t> pending_;
  std::vector<ContentSpan> open_;  // may touch the next block; relative to the first pending token
};

}  // namespace kvferry::index
