// How the fields of the store's messages are written and read. One list of fields per message serves both: Encoder and
// Decoder have the same calls. A Decoder trusts nothing: caps, known enum values, no memory for what is not there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/bytes.h"
#include "kvferry/store.h"
#include "store/local_store.h"
#include "wire/messages.h"

namespace kvferry::store {

class Encoder {
 public:
  explicit Encoder(std::size_t expected_bytes) : writer_(expected_bytes) {}
  Bytes take() { return writer_.take(); }

  template <typename... Field>
  void all(const Field&... fields) {
    (field(fields), ...);
  }
  template <typename Item>
  void list(const std::vector<Item>& items, std::size_t) {
    writer_.u32(static_cast<std::uint32_t>(items.size()));
    for (const auto& item : items) field(static_cast<const Item&>(item));
  }
  template <typename Item>
  void maybe(const std::optional<Item>& item) {
    field(item.has_value());
    if (item) field(*item);
  }
  void text(std::string_view text, std::size_t max_bytes) { writer_.text16(text.substr(0, max_bytes)); }
  void value(ByteView bytes);  // long ones, not copied by a Decoder

  void field(bool flag) { writer_.u8(flag ? 1 : 0); }
  void field(std::uint8_t number) { writer_.u8(number); }
  void field(std::uint16_t number) { writer_.u16(number); }
  void field(std::uint32_t number) { writer_.u32(number); }
  void field(std::uint64_t number) { writer_.u64(number); }
  void field(milliseconds time) { writer_.u64(static_cast<std::uint64_t>(time.count() < 0 ? 0 : time.count())); }
  void field(const ObjectId& id) { all(id.hi, id.lo); }
  void field(const ContentDigest& digest) { all(digest.hi, digest.lo); }
  void field(const RegionKey& key) { all(key.id, key.generation); }
  void field(const NodeId& node) { writer_.raw(as_byte_view(node.bytes)); }
  void field(const Status& status);
  void field(const std::map<std::string, std::uint64_t>& numbers);
  void field(const std::vector<std::string>& texts);
  template <typename Enum>
  requires std::is_enum_v<Enum>
  void field(Enum value) { writer_.u8(static_cast<std::uint8_t>(value)); }
  template <typename Message>
  requires std::is_class_v<Message>
  void field(const Message& message) { Message::fields(*this, message); }
  void field(const Place& place) { all(place.arena, place.offset, place.length); }
  void field(const wire::PieceDescriptor& piece) { all(piece.region, piece.offset, piece.length); }
  void field(const Held& held) { all(held.bytes, held.digest, held.tier, held.replicas); }
  void field(const NewObject& object);
  void field(const Member& member);
  void field(const ObjectInfo& info);
  void field(const NodeStats& stats);

 private:
  ByteWriter writer_;
};

class Decoder {
 public:
  explicit Decoder(ByteView body) : reader_(body) {}
  Status finish(std::string_view what) const { return reader_.finish(what); }
  ByteReader& reader() { return reader_; }

  template <typename... Field>
  void all(Field&... fields) {
    (field(fields), ...);
  }
  // Grows as items are found: a lie about the count takes no memory.
  template <typename Item>
  void list(std::vector<Item>& items, std::size_t max) {
    const std::uint32_t count = reader_.u32();
    if (count > max) reader_.fail(std::to_string(count) + " items; at most " + std::to_string(max) + " are allowed");
    for (std::uint32_t i = 0; i < count && reader_.ok(); ++i) {
      Item item{};
      field(item);
      items.push_back(std::move(item));
    }
  }
  template <typename Item>
  void maybe(std::optional<Item>& item) {
    bool there = false;
    field(there);
    if (there) field(item.emplace());
  }
  void text(std::string& text, std::size_t max_bytes) { text = reader_.text16(max_bytes); }
  void value(ByteView& bytes);  // points into the body

  void field(bool& flag);
  void field(std::uint8_t& number) { number = reader_.u8(); }
  void field(std::uint16_t& number) { number = reader_.u16(); }
  void field(std::uint32_t& number) { number = reader_.u32(); }
  void field(std::uint64_t& number) { number = reader_.u64(); }
  void field(milliseconds& time);
  void field(ObjectId& id) { all(id.hi, id.lo); }
  void field(ContentDigest& digest) { all(digest.hi, digest.lo); }
  void field(RegionKey& key) { all(key.id, key.generation); }
  void field(NodeId& node) { node.bytes = reader_.array<16>(); }
  void field(Status& status);
  void field(std::map<std::string, std::uint64_t>& numbers);
  void field(std::vector<std::string>& texts);
  template <typename Enum>
  requires std::is_enum_v<Enum>
  void field(Enum& value) {
    const std::uint8_t number = reader_.u8();
    value = static_cast<Enum>(number);
    if (reader_.ok() && !is_known(value)) reader_.fail("unknown value " + std::to_string(number));
  }
  template <typename Message>
  requires std::is_class_v<Message>
  void field(Message& message) { Message::fields(*this, message); }
  void field(Place& place) { all(place.arena, place.offset, place.length); }
  void field(wire::PieceDescriptor& piece) { all(piece.region, piece.offset, piece.length); }
  void field(Held& held) { all(held.bytes, held.digest, held.tier, held.replicas); }
  void field(NewObject& object);
  void field(Member& member);
  void field(ObjectInfo& info);
  void field(NodeStats& stats);

 private:
  static bool is_known(Tier tier) { return tier == Tier::kDram || tier == Tier::kSsd; }
  template <typename Enum>
  static bool is_known(Enum value) {
    return value <= Enum::kLast;
  }
  ByteReader reader_;
};

}  // namespace kvferry::store
