#include "base/bytes.h"

#include <gtest/gtest.h>

#include <string>

namespace kvferry {
namespace {

TEST(Bytes, WhatIsWrittenIsRead) {
  ByteWriter writer;
  writer.u8(0x12);
  writer.u16(0x3456);
  writer.u32(0x789abcde);
  writer.u64(0xfedcba9876543210);
  writer.text8("a");
  writer.text16("bc");
  writer.text32(std::string("\0d", 2));
  const Bytes bytes = writer.take();
  EXPECT_EQ(static_cast<int>(bytes[1]), 0x56) << "little-endian";

  ByteReader reader(bytes);
  EXPECT_EQ(reader.u8(), 0x12);
  EXPECT_EQ(reader.u16(), 0x3456);
  EXPECT_EQ(reader.u32(), 0x789abcdeU);
  EXPECT_EQ(reader.u64(), 0xfedcba9876543210U);
  EXPECT_EQ(reader.text8(255), "a");
  EXPECT_EQ(reader.text16(255), "bc");
  EXPECT_EQ(reader.text32(255), std::string("\0d", 2));
  EXPECT_TRUE(reader.finish("test").ok());
}

TEST(Bytes, OverrunFailsForGoodAndYieldsZeros) {
  const Bytes bytes(3, std::byte{0xff});
  ByteReader reader(bytes);
  EXPECT_EQ(reader.u32(), 0U);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.u8(), 0) << "not even what is there";
  EXPECT_EQ(reader.finish("test").to_string(), "protocol_error: test: needs 4 more bytes, has 3");
}

TEST(Bytes, TrailingBytesAreRefused) {
  const Bytes bytes(3);
  ByteReader reader(bytes);
  EXPECT_EQ(reader.u16(), 0);
  EXPECT_EQ(reader.finish("test").code(), Code::kProtocolError);
}

TEST(Bytes, TextBeyondItsCapIsRefusedBeforeItIsCopied) {
  ByteWriter writer;
  writer.u32(0xffffffff);
  const Bytes bytes = writer.take();
  ByteReader reader(bytes);
  EXPECT_EQ(reader.text32(100), "");
  EXPECT_EQ(reader.finish("test").message(), "test: text of 4294967295 bytes, at most 100 are allowed");
}

TEST(Bytes, ReservedBytesMustBeZero) {
  const Bytes bytes{std::byte{0}, std::byte{1}};
  ByteReader good(ByteView(bytes).first(1));
  good.reserved(1);
  EXPECT_TRUE(good.finish("test").ok());
  ByteReader bad(bytes);
  bad.reserved(2);
  EXPECT_FALSE(bad.ok());
}

TEST(Bytes, TooLongTextIsCutToWhatItsPrefixCanSay) {
  ByteWriter writer;
  writer.text8(std::string(300, 'x'));
  const Bytes bytes = writer.take();
  ByteReader reader(bytes);
  EXPECT_EQ(reader.text8(255).size(), 255U);
  EXPECT_TRUE(reader.finish("test").ok());
}

}  // namespace
}  // namespace kvferry
