// What the store and its directory know an object by: 128 bits of a hash over tenant and key.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "kvferry/export.h"

namespace kvferry::store {

struct ObjectId {
  std::uint64_t hi = 0;
  std::uint64_t lo = 0;

  bool is_nil() const { return hi == 0 && lo == 0; }
  std::string to_string() const;  // 32 lower-case hex digits
  auto operator<=>(const ObjectId&) const = default;
};
static_assert(sizeof(ObjectId) == 16);

inline constexpr std::size_t kMaxKeyBytes = 1024;
inline constexpr std::size_t kMaxTenantBytes = 255;

// The ids of one tenant's keys: the first 16 bytes of SHA-256 over a tag, the tenant's digest and the key, so that
// nobody can make one tenant's key meet another's. docs/store.md has the encoding and vectors. Thread-safe.
class KVFERRY_API ObjectIds {
 public:
  explicit ObjectIds(std::string_view tenant);  // "" is the default tenant
  ObjectId of(std::string_view key) const;

 private:
  std::array<std::uint8_t, 24> prefix_;  // tag and tenant digest: what every key's input begins with
};

}  // namespace kvferry::store

template <>
struct std::hash<kvferry::store::ObjectId> {
  // The bits are a hash already.
  std::size_t operator()(const kvferry::store::ObjectId& id) const noexcept { return static_cast<std::size_t>(id.lo); }
};
