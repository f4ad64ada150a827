#include "store/object_records.h"

#include <algorithm>
#include <cstring>

namespace kvferry::store {
namespace {

// Head, then what its flags say is there: tenant, parent and depth; then the key; then each tag after its length.
struct Head {
  std::uint16_t key_bytes;
  std::uint8_t flags;
  std::uint8_t tags;
};
static_assert(sizeof(Head) == 4);
constexpr std::uint8_t kHasTenant = 1;
constexpr std::uint8_t kHasChain = 2;
constexpr std::uint8_t kExtra = 4;

constexpr std::size_t kChainBytes = sizeof(ObjectId) + sizeof(std::uint32_t);

Head head_of(const std::byte* record) {
  Head head;
  std::memcpy(&head, record, sizeof(head));
  return head;
}

std::size_t tag_bytes(const NewObject& object) {
  std::size_t sum = 0;
  for (const std::string& tag : object.tags) sum += 1 + tag.size();
  return sum;
}

std::size_t record_bytes(const NewObject& object, const Head& head) {
  return sizeof(Head) + ((head.flags & kHasTenant) != 0 ? sizeof(std::uint32_t) : 0) +
         ((head.flags & kHasChain) != 0 ? kChainBytes : 0) + object.key.size() + tag_bytes(object);
}

// What the allocator of the C library takes for that many bytes.
std::uint64_t allocated(std::size_t bytes) { return std::max<std::uint64_t>(32, (bytes + 8 + 15) / 16 * 16); }

std::size_t bytes_of(const std::byte* record) {
  const Head head = head_of(record);
  std::size_t bytes = sizeof(Head) + ((head.flags & kHasTenant) != 0 ? sizeof(std::uint32_t) : 0) +
                      ((head.flags & kHasChain) != 0 ? kChainBytes : 0) + head.key_bytes;
  for (std::uint8_t tag = 0; tag < head.tags; ++tag) bytes += 1 + static_cast<std::size_t>(record[bytes]);
  return bytes;
}

class Packer {
 public:
  explicit Packer(std::byte* at) : at_(at) {}
  void put(const void* bytes, std::size_t count) {
    if (count > 0) std::memcpy(at_, bytes, count);
    at_ += count;
  }

 private:
  std::byte* at_;
};

std::string_view text_at(const std::byte* at, std::size_t bytes) { return {reinterpret_cast<const char*>(at), bytes}; }

}  // namespace

Status check_object(const NewObject& object) {
  const auto refuse = [&](const std::string& why) {
    return Status(Code::kInvalidArgument, "object " + object.id.to_string() + ": " + why);
  };
  if (object.id.is_nil()) return refuse("an id of zeros names none");
  if (object.key.size() > kMaxKeyBytes) return refuse("its key has " + std::to_string(object.key.size()) + " bytes");
  if (object.tenant.size() > kMaxTenantBytes) return refuse("its tenant's name is too long");
  if (object.replicas > 255) return refuse("255 replicas are the most");
  if (object.tags.size() > kMaxTags) return refuse(std::to_string(object.tags.size()) + " tags; 16 are the most");
  for (const std::string& tag : object.tags) {
    if (tag.size() > kMaxTagBytes) return refuse("a tag has more than 255 bytes");
  }
  return {};
}

std::vector<std::string> ObjectRecord::tags() const {
  std::vector<std::string> all;
  const std::byte* at = tags_at;
  for (std::uint8_t tag = 0; tag < tag_count; ++tag) {
    const auto bytes = static_cast<std::size_t>(*at);
    all.emplace_back(text_at(at + 1, bytes));
    at += 1 + bytes;
  }
  return all;
}

bool ObjectRecord::has_tag(std::string_view tag) const {
  const std::byte* at = tags_at;
  for (std::uint8_t i = 0; i < tag_count; ++i) {
    const auto bytes = static_cast<std::size_t>(*at);
    if (text_at(at + 1, bytes) == tag) return true;
    at += 1 + bytes;
  }
  return false;
}

void ObjectRecords::put(std::uint32_t slot, const NewObject& object) {
  Head head{static_cast<std::uint16_t>(object.key.size()), 0, static_cast<std::uint8_t>(object.tags.size())};
  if (!object.tenant.empty()) head.flags |= kHasTenant;
  if (!object.parent.is_nil() || object.depth != 0) head.flags |= kHasChain;
  if (object.extra) head.flags |= kExtra;
  const std::size_t bytes = record_bytes(object, head);
  auto record = std::make_unique_for_overwrite<std::byte[]>(bytes);
  Packer packer(record.get());
  packer.put(&head, sizeof(head));
  if ((head.flags & kHasTenant) != 0) {
    const std::uint32_t tenant = use_tenant(object.tenant);
    packer.put(&tenant, sizeof(tenant));
  }
  if ((head.flags & kHasChain) != 0) {
    packer.put(&object.parent, sizeof(object.parent));
    packer.put(&object.depth, sizeof(object.depth));
  }
  packer.put(object.key.data(), object.key.size());
  for (const std::string& tag : object.tags) {
    const auto length = static_cast<std::uint8_t>(tag.size());
    packer.put(&length, 1);
    packer.put(tag.data(), tag.size());
  }
  if (slot >= records_.size()) records_.resize(slot + 1);
  records_[slot] = std::move(record);
  record_bytes_ += allocated(bytes);
}

void ObjectRecords::erase(std::uint32_t slot) {
  const std::byte* const record = records_[slot].get();
  record_bytes_ -= allocated(bytes_of(record));
  if ((head_of(record).flags & kHasTenant) != 0) {
    std::uint32_t tenant = 0;
    std::memcpy(&tenant, record + sizeof(Head), sizeof(tenant));
    leave_tenant(tenant);
  }
  records_[slot].reset();
}

bool ObjectRecords::extra(std::uint32_t slot) const { return (head_of(records_[slot].get()).flags & kExtra) != 0; }

ObjectRecord ObjectRecords::at(std::uint32_t slot) const {
  const std::byte* record = records_[slot].get();
  const Head head = head_of(record);
  record += sizeof(Head);
  ObjectRecord seen;
  if ((head.flags & kHasTenant) != 0) {
    std::uint32_t tenant = 0;
    std::memcpy(&tenant, record, sizeof(tenant));
    seen.tenant = tenants_[tenant].name;
    record += sizeof(tenant);
  }
  if ((head.flags & kHasChain) != 0) {
    std::memcpy(&seen.parent, record, sizeof(seen.parent));
    std::memcpy(&seen.depth, record + sizeof(seen.parent), sizeof(seen.depth));
    record += kChainBytes;
  }
  seen.extra = (head.flags & kExtra) != 0;
  seen.key = text_at(record, head.key_bytes);
  seen.tags_at = record + head.key_bytes;
  seen.tag_count = head.tags;
  return seen;
}

std::uint32_t ObjectRecords::use_tenant(const std::string& name) {
  const auto known = tenant_numbers_.find(name);
  if (known != tenant_numbers_.end()) {
    ++tenants_[known->second].objects;
    return known->second;
  }
  auto number = static_cast<std::uint32_t>(tenants_.size());
  if (spare_tenants_.empty()) {
    tenants_.emplace_back();
  } else {
    number = spare_tenants_.back();
    spare_tenants_.pop_back();
  }
  tenants_[number] = {name, 1};
  tenant_numbers_.emplace(name, number);
  return number;
}

void ObjectRecords::leave_tenant(std::uint32_t number) {
  if (--tenants_[number].objects > 0) return;
  tenant_numbers_.erase(tenants_[number].name);
  tenants_[number] = {};
  spare_tenants_.push_back(number);
}

std::uint64_t ObjectRecords::memory_bytes() const {
  constexpr std::uint64_t kTenantBytes = 160;  // two strings and a node of the map, roughly
  return record_bytes_ + records_.size() * sizeof(records_[0]) + tenants_.size() * kTenantBytes;
}

}  // namespace kvferry::store
