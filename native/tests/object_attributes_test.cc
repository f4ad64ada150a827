// What a record on the disk says of its object: it comes back as it was, and other bytes are refused.
#include "store/object_attributes.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvferry::store {
namespace {

NewObject wordy_object() {
  NewObject object;
  object.tenant = std::string(kMaxTenantBytes, 't');
  object.replicas = 255;
  object.tags = {"", std::string("\0x", 2), std::string(255, 'x')};
  object.parent = {1, ~0ull};
  object.depth = 77;
  object.extra = true;
  return object;
}

TEST(ObjectAttributes, ComeBack) {
  for (const NewObject& object : {NewObject{}, wordy_object()}) {
    const auto decoded = decode_attributes(encode_attributes(object, 1234567890123));
    ASSERT_TRUE(decoded);
    EXPECT_EQ(decoded->expires_wall_ms, 1234567890123u);
    EXPECT_EQ(decoded->object.tenant, object.tenant);
    EXPECT_EQ(decoded->object.replicas, object.replicas);
    EXPECT_EQ(decoded->object.tags, object.tags);
    EXPECT_EQ(decoded->object.parent, object.parent);
    EXPECT_EQ(decoded->object.depth, object.depth);
    EXPECT_EQ(decoded->object.extra, object.extra);
  }
}

TEST(ObjectAttributes, AreRefusedIfCutOrLengthenedOrOfAnotherVersion) {
  const std::string whole = encode_attributes(wordy_object(), 1);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(decode_attributes(std::string_view(whole).substr(0, length))) << length;
  }
  EXPECT_FALSE(decode_attributes(whole + '\0'));
  std::string other = whole;
  other[0] = 2;
  EXPECT_FALSE(decode_attributes(other));
}

TEST(ObjectAttributes, SurviveAnyBytes) {
  const std::uint64_t seed = random_u64();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::uint64_t state = seed;
  const auto next = [&] { return (state = state * 6364136223846793005ULL + 1442695040888963407ULL) >> 33; };
  const std::string whole = encode_attributes(wordy_object(), 1);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = whole;
    for (std::uint64_t i = next() % 4 + 1; i > 0; --i) bytes[next() % 400 % bytes.size()] = static_cast<char>(next());
    const auto decoded = decode_attributes(bytes);
    if (decoded) {
      EXPECT_LE(decoded->object.tags.size(), 16u);
    }
  }
}

}  // namespace
}  // namespace kvferry::store
