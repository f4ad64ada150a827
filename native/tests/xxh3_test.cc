// XXH3 against the figures of another build of the same algorithm (the Python package xxhash 4.1).
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/block_copy.h"
#include "base/xxh3.h"

namespace kvferry {
namespace {

constexpr std::uint64_t kSeed = 0x9e3779b97f4a7c15;

Bytes sample(std::size_t length) {
  Bytes bytes(length);
  for (std::size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(i * i * 31 + i * 7 + (i >> 8));
  return bytes;
}

std::string hex(const Hash128& hash) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const std::uint8_t byte : hash.bytes()) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

struct Vector {
  std::size_t length;
  std::uint64_t hash_64;
  const char* hash_128;
  const char* seeded_128;  // with kSeed
};

// One for each way that XXH3 goes by length, and its borders.
const std::vector<Vector> kVectors{
    {0, 0x2d06800538d394c2, "99aa06d3014798d86001c324468d497f", "d142977a2cca554b4ca5176998171787"},
    {1, 0xc44bdff4074eecdb, "a6cd5e9392000f6ac44bdff4074eecdb", "e366b8c99a31df50062b185e4e01441a"},
    {3, 0x1729c78f56ec7369, "2012adb9c9d860b71729c78f56ec7369", "558e742746b6e65556c3601e4220d2f8"},
    {4, 0xe5097d6d2a406dde, "845026b94ecb793b2494ffbfb3959765", "f06c0012c774c39a4ab1d896698ae978"},
    {8, 0x89b9b1111ecd5976, "4132fb07c0432330ce0ff5563c3393fc", "cf9d589ce7eac8b30cb6fe7cb7cfd9f4"},
    {9, 0x442f901347eac6d7, "6cc3a7d0f308d91272ca3cbcd7ef6247", "33f066ebb9147e39243b9ea49908feaa"},
    {16, 0x3e094ab84274d7e2, "e973c9785debe255c5db1599402c959c", "589a47b44c784dfeffc8c5910533e382"},
    {17, 0xf023ce206c53cb88, "8219c336c5babc21e9c20cd7156aac1e", "c188e64c8066ed466caf547be969c59f"},
    {128, 0x74cc793e51cbbf70, "b7dc1a8e2a298c315ff0625c7e1e9d5f", "ec6b6fea719d722d5cec27b31c5d5098"},
    {129, 0x896bc9b5ee9a02de, "b72d53d90720128de7c6328994fdd22c", "0fdb5c6015366b4170f97c9698caaadf"},
    {240, 0x168ac2eea3381b59, "d379160924f79efe66cbbc5363497aa6", "ec6e5bd15aefa0433fd8f9d72df6b5ee"},
    {241, 0x5f15f12e172b51fa, "037fc7f5eb0e62df5f15f12e172b51fa", "8c2b6cf611c63be3cf1c0c862b0077ac"},
    {1024, 0x6049adedbb22283e, "f71bd8197487cda16049adedbb22283e", "8ff7ea3aee4e795afad7fc575ce7dd6e"},
    {1025, 0x63c9fc3d4dc27985, "97b196dd29fe16fb63c9fc3d4dc27985", "6076b3e1984f9323b3f5ed8687defb7a"},
    {20000, 0x6aa748f0978acafa, "3b0c1c1e94573eba6aa748f0978acafa", "4148da9c6065c938d930a3b7efdc3b17"}};

TEST(Xxh3, MatchesAnotherBuild) {
  for (const Vector& vector : kVectors) {
    const Bytes bytes = sample(vector.length);
    EXPECT_EQ(xxh3_64(bytes), vector.hash_64) << vector.length;
    EXPECT_EQ(hex(xxh3_128(bytes)), vector.hash_128) << vector.length;
    EXPECT_EQ(hex(xxh3_128(bytes, kSeed)), vector.seeded_128) << vector.length;
    EXPECT_EQ(hex(xxh3_128_portable(bytes, kSeed)), vector.seeded_128) << vector.length;
  }
}

TEST(Xxh3, PiecesGiveTheHashOfTheWhole) {
  for (const Vector& vector : kVectors) {
    const Bytes bytes = sample(vector.length);
    for (const std::size_t step : {std::size_t{1}, std::size_t{100}, std::size_t{256}, std::size_t{5000}}) {
      Xxh3 hash;
      for (std::size_t at = 0; at < bytes.size(); at += step) {
        hash.update(ByteView(bytes).subspan(at, std::min(step, bytes.size() - at)));
      }
      EXPECT_EQ(hash.digest_64(), vector.hash_64) << vector.length << " by " << step;
      EXPECT_EQ(hex(hash.digest_128()), vector.hash_128) << vector.length << " by " << step;
    }
  }
}

TEST(Xxh3, ADigestDoesNotEndTheStreamAndCopiesGoTheirOwnWay) {
  const Bytes bytes = sample(1000);
  Xxh3 hash(kSeed);
  hash.update(ByteView(bytes).first(600));
  Xxh3 copy = hash;
  EXPECT_EQ(hash.digest_128(), xxh3_128(ByteView(bytes).first(600), kSeed));
  copy.update(ByteView(bytes).first(1));
  hash.update(ByteView(bytes).subspan(600));
  EXPECT_EQ(hash.digest_128(), xxh3_128(bytes, kSeed));
  EXPECT_NE(copy.digest_128(), hash.digest_128());
}

// Each byte of the secret counts for some length.
TEST(Xxh3, TheSecretIsUsedWhole) {
  Xxh3Secret secret{};
  for (std::size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<std::uint8_t>(i * 37 + 11);
  const Bytes bytes = sample(2000);
  const std::vector<std::size_t> lengths{92, 240, 2000};
  for (std::size_t at = 0; at < secret.size(); ++at) {
    Xxh3Secret other = secret;
    other[at] ^= 1;
    bool differs = false;
    for (const std::size_t length : lengths) {
      const ByteView view = ByteView(bytes).first(length);
      differs = differs || xxh3_128(view, secret) != xxh3_128(view, other);
    }
    EXPECT_TRUE(differs) << "byte " << at;
  }
}

// Wherever the target begins, and whatever of the bytes before is still held back.
TEST(Xxh3, CopiesOnTheWay) {
  constexpr std::size_t kLine = 64, kRoom = 80000;
  const Bytes bytes = sample(kRoom);
  Bytes memory(kRoom + 2 * kLine);
  const auto beyond = reinterpret_cast<std::uintptr_t>(memory.data()) % kLine;
  std::byte* const line = memory.data() + (kLine - beyond);
  for (const std::size_t before : {0u, 1u, 64u, 192u, 256u, 257u, 3000u}) {
    for (const std::size_t length : {0u, 1u, 319u, 320u, 321u, 1024u, 4096u, 5001u, 70000u}) {
      for (const std::size_t skew : {0u, 1u, 32u}) {
        std::fill(memory.begin(), memory.end(), std::byte{0});
        std::byte* const target = line + skew;
        const ByteView all = ByteView(bytes).first(before + length);
        Xxh3 hash;
        hash.update(all.first(before));
        hash.update_and_stream(all.subspan(before), target);
        fence_streamed();
        EXPECT_EQ(hash.digest_128(), xxh3_128(all)) << before << " " << length << " " << skew;
        EXPECT_TRUE(std::equal(target, target + length, bytes.begin() + static_cast<std::ptrdiff_t>(before)));
        EXPECT_EQ(target[length], std::byte{0});
        hash.update(ByteView(bytes).first(100));  // goes on from there
        Xxh3 whole;
        whole.update(all);
        whole.update(ByteView(bytes).first(100));
        EXPECT_EQ(hash.digest_128(), whole.digest_128());
      }
    }
  }
}

// The second run of two is digested in whole lines, too, when both have whole ones.
TEST(Xxh3, CopiesRunsOneBehindTheOther) {
  constexpr std::size_t kRun = 64u << 10;
  const Bytes bytes = sample(4 * kRun);
  Bytes target(bytes.size() + 64);
  const auto beyond = reinterpret_cast<std::uintptr_t>(target.data()) % 64;
  std::byte* const to = target.data() + (64 - beyond);
  Xxh3 hash;
  for (std::size_t at = 0; at < bytes.size(); at += kRun) {
    hash.update_and_stream(ByteView(bytes).subspan(at, kRun), to + at);
  }
  fence_streamed();
  EXPECT_EQ(hash.digest_128(), xxh3_128(bytes));
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), to));
}

}  // namespace
}  // namespace kvferry
