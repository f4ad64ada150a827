#include "store/policy/policy.h"

#include <array>
#include <utility>

#include "store/policy/prefix_policy.h"
#include "store/policy/simple_policies.h"

namespace kvferry::store {
namespace {

constexpr std::array<std::pair<PolicyKind, std::string_view>, 4> kNames = {{
    {PolicyKind::kLru, "lru"},
    {PolicyKind::kLfu, "lfu"},
    {PolicyKind::kS3Fifo, "s3fifo"},
    {PolicyKind::kPrefix, "prefix"},
}};

}  // namespace

std::string_view policy_name(PolicyKind kind) { return kNames[static_cast<std::size_t>(kind)].second; }

std::optional<PolicyKind> policy_kind(std::string_view name) {
  for (const auto& [kind, its_name] : kNames) {
    if (its_name == name) return kind;
  }
  return std::nullopt;
}

std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind, std::uint64_t capacity_bytes, ObjectsView objects) {
  switch (kind) {
    case PolicyKind::kLru:
      return std::make_unique<LruPolicy>();
    case PolicyKind::kLfu:
      return std::make_unique<LfuPolicy>();
    case PolicyKind::kS3Fifo:
      return std::make_unique<S3FifoPolicy>(capacity_bytes);
    case PolicyKind::kPrefix:
      return std::make_unique<PrefixPolicy>(capacity_bytes, std::move(objects));
  }
  return nullptr;
}

}  // namespace kvferry::store
