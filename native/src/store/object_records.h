// What a node knows of its objects beyond the index: keys, tenants, tags, chains. One packed piece of memory for each
// object, found by its slot. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "store/local_store.h"

namespace kvferry::store {

inline constexpr std::size_t kMaxTags = 16;
inline constexpr std::size_t kMaxTagBytes = 255;

// kInvalidArgument, with what is wrong, unless a record can hold it.
Status check_object(const NewObject& object);

struct ObjectRecord {  // a look at one; valid until the record is erased
  std::string_view key;
  std::string_view tenant;
  ObjectId parent;
  std::uint32_t depth = 0;
  bool extra = false;

  std::vector<std::string> tags() const;
  bool has_tag(std::string_view tag) const;

  const std::byte* tags_at = nullptr;
  std::uint8_t tag_count = 0;
};

class ObjectRecords {
 public:
  void put(std::uint32_t slot, const NewObject& object);
  void erase(std::uint32_t slot);
  bool has(std::uint32_t slot) const { return slot < records_.size() && records_[slot] != nullptr; }
  ObjectRecord at(std::uint32_t slot) const;  // has(slot)
  bool extra(std::uint32_t slot) const;

  std::uint64_t memory_bytes() const;

 private:
  struct Tenant {
    std::string name;
    std::uint64_t objects = 0;
  };
  std::uint32_t use_tenant(const std::string& name);
  void leave_tenant(std::uint32_t number);

  // A deque does not need twice its memory to grow.
  std::deque<std::unique_ptr<std::byte[]>> records_;
  std::uint64_t record_bytes_ = 0;
  std::vector<Tenant> tenants_{{"", 1}};  // number 0 is the default one, which no record names
  std::vector<std::uint32_t> spare_tenants_;
  std::map<std::string, std::uint32_t, std::less<>> tenant_numbers_;
};

}  // namespace kvferry::store
