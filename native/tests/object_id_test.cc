#include "kvferry/object_id.h"

#include <gtest/gtest.h>

#include <string>

namespace kvferry::store {
namespace {

std::string all_bytes() {
  std::string key;
  for (int byte = 0; byte < 256; ++byte) key.push_back(static_cast<char>(byte));
  return key;
}

// Made with Python: sha256(b"KVFobj1\\0" + sha256(tenant).digest()[:16] + key).hexdigest()[:32]
TEST(ObjectIds, ArePublished) {
  EXPECT_EQ(ObjectIds("").of("").to_string(), "044f021cfbcd12281fa5e04aa99f8e98");
  EXPECT_EQ(ObjectIds("").of("k").to_string(), "fe44f2f70410b943905563fbf5f7a639");
  EXPECT_EQ(ObjectIds("a").of("k").to_string(), "f1bfe2696c700c307b045355821e3043");
  EXPECT_EQ(ObjectIds("").of(all_bytes()).to_string(), "9e5feb5af840598756d3dddaa4a99d71");
}

TEST(ObjectIds, KeepTenantsApart) {
  EXPECT_NE(ObjectIds("a").of("bc"), ObjectIds("ab").of("c"));
  EXPECT_NE(ObjectIds("").of("k"), ObjectIds("k").of(""));
}

}  // namespace
}  // namespace kvferry::store
