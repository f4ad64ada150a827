// Block keys: the published vectors, what must make keys differ (field cases 4.3 and 7.5), and sequences that grow.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "json.h"
#include "kvferry/block_key.h"

namespace kvferry::index {
namespace {

using Keys = std::vector<BlockKey>;
using Tokens = std::vector<std::int32_t>;

Tokens random_tokens(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  Tokens tokens(count);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % 150000);
  return tokens;
}

std::shared_ptr<const KeySpace> space_of(const KeyIdentity& identity, KeyAlgorithm algorithm = KeyAlgorithm::kSha256,
                                         std::string_view secret = {}) {
  auto space = KeySpace::create(identity, algorithm, secret);
  if (!space.ok()) throw std::runtime_error(space.status().to_string());
  return std::move(space).value();
}

Keys keys_of(const KeySpace& space, const Tokens& tokens, const std::vector<ContentSpan>& spans = {}) {
  Keys keys(tokens.size() / space.block_tokens());
  EXPECT_TRUE(space.keys(space.root(), tokens, spans, keys).ok());
  return keys;
}

KeyIdentity identity_from(const Json& json) {
  KeyIdentity id;
  const auto text = [&](const char* name, std::string& field) {
    if (json.has(name)) field = json.at(name).text;
  };
  const auto number = [&](const char* name, std::uint32_t& field) {
    if (json.has(name)) field = static_cast<std::uint32_t>(json.at(name).number);
  };
  text("model", id.model);
  text("revision", id.revision);
  text("geometry", id.geometry);
  text("dtype", id.dtype);
  text("layout", id.layout);
  text("lora", id.lora);
  text("salt", id.salt);
  text("tenant", id.tenant);
  number("block_tokens", id.block_tokens);
  number("tensor_parallel", id.tensor_parallel);
  number("group", id.group);
  if (json.has("extra")) {
    for (const auto& [name, value] : json.at("extra").members) id.extra.emplace_back(name, value.text);
  }
  return id;
}

TEST(BlockKey, PublishedVectors) {
  const Json file = read_json(KVFERRY_BLOCK_KEY_VECTORS);
  ASSERT_GE(file.at("cases").items.size(), 30U);
  for (const Json& one : file.at("cases").items) {
    SCOPED_TRACE(one.at("name").text);
    const auto algorithm = one.at("algorithm").text == "xxh3" ? KeyAlgorithm::kXxh3 : KeyAlgorithm::kSha256;
    const auto space = space_of(identity_from(one.at("identity")), algorithm, one.at("secret").text);
    EXPECT_EQ(space->root().to_string(), one.at("root").text);
    Tokens tokens;
    for (const Json& token : one.at("tokens").items) tokens.push_back(static_cast<std::int32_t>(token.number));
    std::vector<ContentSpan> spans;
    for (const Json& span : one.at("spans").items) {
      spans.push_back({span.items[0].number, static_cast<std::uint64_t>(span.items[1].number), span.items[2].text});
    }
    const Keys keys = keys_of(*space, tokens, spans);
    ASSERT_EQ(keys.size(), one.at("keys").items.size());
    for (std::size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(keys[i].to_string(), one.at("keys").items[i].text) << i;
    EXPECT_EQ(space->of_engine_hash(as_byte_view(one.at("engine_hash").text)).to_string(), one.at("engine_key").text);
  }
}

// Every field by itself, the same value in each of them, and values that run together without length prefixes.
TEST(BlockKey, EveryFieldCountsAndStaysApartFromTheOthers) {
  std::vector<KeyIdentity> identities(1);
  const auto with = [&](auto&& change) {
    KeyIdentity id;
    change(id);
    identities.push_back(id);
  };
  for (const char* value : {"X", "XX", "Y"}) {
    for (auto field : {&KeyIdentity::model, &KeyIdentity::revision, &KeyIdentity::geometry, &KeyIdentity::dtype,
                       &KeyIdentity::layout, &KeyIdentity::lora, &KeyIdentity::salt, &KeyIdentity::tenant}) {
      with([&](KeyIdentity& id) { id.*field = value; });
    }
    with([&](KeyIdentity& id) { id.extra = {{"X", value}}; });
    with([&](KeyIdentity& id) { id.extra = {{"", value}}; });
    with([&](KeyIdentity& id) { id.extra = {{value, "Z"}, {"W", "Z"}}; });
  }
  for (auto field : {&KeyIdentity::block_tokens, &KeyIdentity::tensor_parallel, &KeyIdentity::group}) {
    for (const std::uint32_t value : {2U, 3U}) with([&](KeyIdentity& id) { id.*field = value; });
  }
  with([](KeyIdentity& id) { id.model = "ab", id.revision = "c"; });
  with([](KeyIdentity& id) { id.model = "a", id.revision = "bc"; });
  with([](KeyIdentity& id) { id.lora = std::string("a\0b", 3); });
  with([](KeyIdentity& id) { id.lora = "a"; });
  for (const KeyAlgorithm algorithm : {KeyAlgorithm::kSha256, KeyAlgorithm::kXxh3}) {
    std::set<BlockKey> roots;
    std::set<BlockKey> first;
    const Tokens tokens = random_tokens(16, 3);
    for (const KeyIdentity& id : identities) {
      const auto space = space_of(id, algorithm);
      EXPECT_TRUE(roots.insert(space->root()).second);
      EXPECT_TRUE(first.insert(keys_of(*space, tokens).at(0)).second);
    }
  }
}

TEST(BlockKey, TheOrderOfExtraFieldsDoesNotCount) {
  KeyIdentity a;
  a.extra = {{"b", "1"}, {"a", "2"}};
  KeyIdentity b;
  b.extra = {{"a", "2"}, {"b", "1"}, {"c", ""}};
  EXPECT_EQ(space_of(a)->root(), space_of(b)->root());
}

TEST(BlockKey, SecretTenantAndAlgorithmKeyEveryBlock) {
  const Tokens tokens = random_tokens(32, 4);
  std::set<BlockKey> seen;
  for (const KeyAlgorithm algorithm : {KeyAlgorithm::kSha256, KeyAlgorithm::kXxh3}) {
    for (const char* secret : {"", "one", "two"}) {
      for (const char* tenant : {"", "a", "b"}) {
        KeyIdentity id;
        id.tenant = tenant;
        const auto space = space_of(id, algorithm, secret);
        // The parent is the same: who knows a key of another tenant cannot compute what follows it.
        Keys keys(2);
        ASSERT_TRUE(space->keys(BlockKey{}, tokens, {}, keys).ok());
        for (const BlockKey& key : keys) EXPECT_TRUE(seen.insert(key).second);
      }
    }
  }
}

TEST(BlockKey, OneTokenAnywhereChangesAllKeysFromItsBlockOn) {
  const auto space = space_of({});
  const Tokens tokens = random_tokens(64, 5);
  const Keys keys = keys_of(*space, tokens);
  for (std::size_t at = 0; at < tokens.size(); ++at) {
    Tokens other = tokens;
    other[at] ^= 1;
    const Keys changed = keys_of(*space, other);
    for (std::size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(keys[i] == changed[i], i < at / 16) << at << " " << i;
  }
}

TEST(BlockKey, ContentCountsInEveryBlockItTouchesAndAfter) {
  const auto space = space_of({}, KeyAlgorithm::kXxh3);
  const Tokens tokens(64, 7);  // an image's place holders
  const Keys plain = keys_of(*space, tokens);
  const Keys one = keys_of(*space, tokens, {{20, 20, "one"}});
  EXPECT_EQ(plain[0], one[0]);
  const std::vector<std::vector<ContentSpan>> others{
      {},
      {{20, 20, "two"}},
      {{20, 20, "on"}},
      {{21, 20, "one"}},
      {{20, 21, "one"}},
      {{20, 10, "one"}, {30, 10, "one"}},
      {{20, 20, "one"}, {20, 20, "two"}},
      {{20, 20, "one"}, {20, 20, "one"}},
  };
  std::set<BlockKey> seconds{one[1]};
  for (const auto& spans : others) {
    const Keys keys = keys_of(*space, tokens, spans);
    EXPECT_EQ(keys[0], one[0]);
    EXPECT_NE(keys[2], one[2]);
    seconds.insert(keys[1]);
  }
  EXPECT_EQ(seconds.size(), 8U);  // only the longer span's second block is the same
  EXPECT_EQ(keys_of(*space, tokens, {{20, 20, "one"}, {1, 2, "two"}}),
            keys_of(*space, tokens, {{1, 2, "two"}, {20, 20, "one"}}));
}

// Field case 4.3, birthday test: 100,000 images under the same text.
TEST(BlockKey, AHundredThousandImagesHaveAsManyKeys) {
  for (const KeyAlgorithm algorithm : {KeyAlgorithm::kSha256, KeyAlgorithm::kXxh3}) {
    const auto space = space_of({}, algorithm);
    const Tokens tokens(16, 1);
    Keys keys;
    for (int image = 0; image < 100000; ++image) {
      keys.push_back(keys_of(*space, tokens, {{0, 16, "image " + std::to_string(image)}}).at(0));
    }
    // Not even the first 64 bits are the same twice (chance 3 in 10^10).
    std::set<std::uint64_t> halves;
    for (const BlockKey& key : keys) {
      std::uint64_t half = 0;
      std::memcpy(&half, key.bytes.data(), sizeof(half));
      halves.insert(half);
    }
    EXPECT_EQ(halves.size(), keys.size());
  }
}

TEST(KeyChain, AnyPiecesGiveTheKeysOfTheWhole) {
  std::mt19937 engine(6);
  const auto random = [&engine] { return static_cast<std::uint32_t>(engine()); };
  for (int round = 0; round < 200; ++round) {
    KeyIdentity id;
    id.block_tokens = 1 + random() % 20;
    const auto space = space_of(id, round % 2 == 0 ? KeyAlgorithm::kSha256 : KeyAlgorithm::kXxh3);
    const Tokens tokens = random_tokens(random() % 200, random());
    std::vector<ContentSpan> spans;
    for (unsigned i = random() % 4; i > 0; --i) {
      spans.push_back({static_cast<std::int64_t>(random() % 200), 1 + random() % 40, std::to_string(random() % 3)});
    }
    KeyChain chain(space, space->root(), 0);
    Keys keys;
    std::size_t at = 0;
    while (at < tokens.size()) {
      const std::size_t take = std::min<std::size_t>(tokens.size() - at, 1 + random() % 40);
      std::vector<ContentSpan> begun;  // those that begin in this piece
      for (const ContentSpan& span : spans) {
        const auto first = static_cast<std::size_t>(span.first_token);
        if (first < at || first >= at + take) continue;
        begun.push_back(span);
        begun.back().first_token -= static_cast<std::int64_t>(at);
      }
      ASSERT_TRUE(chain.extend(std::span(tokens).subspan(at, take), begun, keys).ok());
      at += take;
      EXPECT_EQ(chain.position(), at);
      EXPECT_EQ(chain.pending_tokens(), at % id.block_tokens);
    }
    EXPECT_EQ(keys, keys_of(*space, tokens, spans)) << "round " << round;
    EXPECT_EQ(chain.last(), keys.empty() ? space->root() : keys.back());
  }
}

TEST(KeyChain, ContinuesFromAKnownBlock) {
  const auto space = space_of({});
  const Tokens tokens = random_tokens(80, 7);
  const Keys whole = keys_of(*space, tokens);
  KeyChain chain(space, whole[1], 32);
  Keys rest;
  ASSERT_TRUE(chain.extend(std::span(tokens).subspan(32), {}, rest).ok());
  EXPECT_EQ(rest, Keys(whole.begin() + 2, whole.end()));
  EXPECT_EQ(chain.position(), 80U);
}

TEST(KeyChain, ARefusedSpanChangesNothing) {
  const auto space = space_of({});
  KeyChain chain(space, space->root(), 0);
  Keys keys;
  EXPECT_EQ(chain.extend(random_tokens(20, 8), std::vector<ContentSpan>{{0, 0, "x"}}, keys).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(chain.position(), 0U);
  EXPECT_TRUE(keys.empty());
  ASSERT_TRUE(chain.extend(random_tokens(20, 8), {}, keys).ok());
  EXPECT_EQ(keys, keys_of(*space, random_tokens(20, 8)));
}

TEST(BlockKey, WhatIsOutOfItsLimitsIsRefusedByName) {
  const auto refused = [](auto&& change) {
    KeyIdentity id;
    change(id);
    const auto made = KeySpace::create(id);
    EXPECT_EQ(made.status().code(), Code::kInvalidArgument);
    return made.status().message();
  };
  const std::string long_text(kMaxKeyFieldBytes + 1, 'x');
  EXPECT_NE(refused([&](KeyIdentity& id) { id.lora = long_text; }).find("lora"), std::string::npos);
  EXPECT_NE(refused([&](KeyIdentity& id) {
              id.extra = {{"e", long_text}};
            }).find("e of a block key"),
            std::string::npos);
  EXPECT_NE(refused([](KeyIdentity& id) { id.extra = {{"e", "1"}, {"e", "2"}}; }).find("twice"), std::string::npos);
  EXPECT_NE(refused([](KeyIdentity& id) { id.block_tokens = 0; }).find("0 tokens"), std::string::npos);
  refused([](KeyIdentity& id) { id.block_tokens = kMaxBlockTokens + 1; });
  refused([](KeyIdentity& id) { id.tensor_parallel = 0; });
  EXPECT_EQ(KeySpace::create({}, static_cast<KeyAlgorithm>(3)).status().code(), Code::kInvalidArgument);
  const auto space = space_of({});
  Keys one(1);
  EXPECT_EQ(space->keys(space->root(), Tokens(32), {}, one).code(), Code::kInvalidArgument);
  for (const ContentSpan& span :
       {ContentSpan{0, 1, ""}, ContentSpan{0, 1, long_text}, ContentSpan{INT64_MAX, 1, "x"}}) {
    EXPECT_EQ(space->keys(space->root(), Tokens(16), {&span, 1}, one).code(), Code::kInvalidArgument);
  }
  const ContentSpan endless{-5, UINT64_MAX, "x"};  // goes on for ever: allowed
  EXPECT_TRUE(space->keys(space->root(), Tokens(16), {&endless, 1}, one).ok());
}

}  // namespace
}  // namespace kvferry::index
