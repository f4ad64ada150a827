// CRC-32C against RFC 3720 B.4, SHA-256 against FIPS 180-4 examples, HMAC against RFC 4231,
// HKDF against RFC 5869.
#include <gtest/gtest.h>

#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/sha256.h"

namespace kvferry {
namespace {

std::string hex(std::span<const std::uint8_t> digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const std::uint8_t byte : digest) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

std::string hmac_hex(const std::string& key, std::string_view text) {
  const ByteView part = as_byte_view(text);
  return hex(hmac_sha256(as_byte_view(key), {&part, 1}));
}

TEST(Crc32c, MatchesPublishedVectors) {
  std::string ascending;
  for (int i = 0; i < 32; ++i) ascending += static_cast<char>(i);
  const std::string descending(ascending.rbegin(), ascending.rend());
  for (auto* const crc : {&crc32c, &crc32c_portable}) {
    EXPECT_EQ(crc(as_byte_view(std::string(32, '\0')), 0), 0x8a9136aaU);
    EXPECT_EQ(crc(as_byte_view(std::string(32, '\xff')), 0), 0x62a8ab43U);
    EXPECT_EQ(crc(as_byte_view(ascending), 0), 0x46dd794eU);
    EXPECT_EQ(crc(as_byte_view(descending), 0), 0x113fdb5cU);
    EXPECT_EQ(crc(as_byte_view("123456789"), 0), 0xe3069283U);
    EXPECT_EQ(crc({}, 0), 0U);
  }
}

TEST(Crc32c, InstructionEqualsPortableForAllLengthsAndCuts) {
  std::mt19937 random(1);
  Bytes bytes(50000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (std::size_t length = 0; length < bytes.size(); length = length * 5 / 4 + 1) {
    const ByteView view = ByteView(bytes).subspan(bytes.size() - length);  // any alignment
    const std::uint32_t expected = crc32c_portable(view);
    EXPECT_EQ(crc32c(view), expected) << length;
    const std::size_t cut = length == 0 ? 0 : random() % length;
    EXPECT_EQ(crc32c(view.subspan(cut), crc32c(view.first(cut))), expected) << length << " cut at " << cut;
  }
}

TEST(Sha256, MatchesPublishedVectors) {
  EXPECT_EQ(hex(sha256(as_byte_view("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256(as_byte_view("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(as_byte_view(std::string(1000000, 'a')))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesGiveTheSameDigestAtEveryLengthNearABlock) {
  const std::string text(130, 'k');
  for (std::size_t length = 50; length <= text.size(); ++length) {
    Sha256 pieces;
    pieces.update(as_byte_view(text.substr(0, 33)));
    pieces.update(as_byte_view(text.substr(33, length - 33)));
    EXPECT_EQ(pieces.finish(), sha256(as_byte_view(text.substr(0, length)))) << length;
  }
}

TEST(Sha256, OfTwoPartsIsThatOfBothTogether) {
  std::mt19937_64 random(7);
  std::string text(200, ' ');
  for (char& c : text) c = static_cast<char>(random());
  for (std::size_t length = 0; length <= text.size(); ++length) {  // beyond what fits into two blocks
    const ByteView whole = as_byte_view(std::string_view(text).substr(0, length));
    for (const std::size_t first : {std::size_t{0}, length / 3, length}) {
      EXPECT_EQ(sha256(whole.first(first), whole.subspan(first)), sha256(whole)) << length;
    }
  }
}

TEST(Sha256, InstructionEqualsPortable) {
  std::mt19937 random(2);
  Bytes bytes(64 * 9 + 1);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (std::size_t blocks = 0; blocks <= 9; ++blocks) {
    Sha256State fast{1, 2, 3, 4, 5, 6, 7, 0xffffffff};
    Sha256State plain = fast;
    sha256_blocks(fast, bytes.data() + 1, blocks);  // at an odd address
    sha256_blocks_portable(plain, bytes.data() + 1, blocks);
    EXPECT_EQ(fast, plain) << blocks;
  }
}

TEST(HmacSha256, MatchesRfc4231) {
  EXPECT_EQ(hmac_hex(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac_hex("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac_hex(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hmac_hex(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(HmacSha256, PartsAreConcatenated) {
  const std::array<ByteView, 2> parts{as_byte_view("Hi "), as_byte_view("There")};
  EXPECT_EQ(hex(hmac_sha256(as_byte_view(std::string(20, '\x0b')), parts)),
            hmac_hex(std::string(20, '\x0b'), "Hi There"));
}

std::string bytes_from(unsigned first, unsigned count) {
  std::string out;
  for (unsigned i = 0; i < count; ++i) out += static_cast<char>(first + i);
  return out;
}

std::string hkdf_hex(const std::string& salt, const std::string& secret, const std::string& info, std::size_t length) {
  std::vector<std::uint8_t> out(length);
  hkdf_sha256(as_byte_view(salt), as_byte_view(secret), as_byte_view(info), out);
  return hex(out);
}

// RFC 5869, appendix A, test cases 1 to 3.
TEST(HkdfSha256, MatchesRfc5869) {
  EXPECT_EQ(hkdf_hex(bytes_from(0x00, 13), std::string(22, '\x0b'), bytes_from(0xf0, 10), 42),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865");
  EXPECT_EQ(hkdf_hex(bytes_from(0x60, 80), bytes_from(0x00, 80), bytes_from(0xb0, 80), 82),
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c"
            "59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87");
  EXPECT_EQ(hkdf_hex("", std::string(22, '\x0b'), "", 42),
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8");
}

TEST(Digest, ConstantTimeCompareSeesEveryBit) {
  const Digest a = sha256(as_byte_view("abc"));
  EXPECT_TRUE(equal_constant_time(a, a));
  for (std::size_t bit = 0; bit < 256; ++bit) {
    Digest b = a;
    b[bit / 8] = static_cast<std::uint8_t>(b[bit / 8] ^ (1U << (bit % 8)));
    EXPECT_FALSE(equal_constant_time(a, b)) << bit;
  }
  EXPECT_FALSE(equal_constant_time(a, std::span(a).first(31)));
}

}  // namespace
}  // namespace kvferry
