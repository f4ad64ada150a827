// Which object of a node to give up next. docs/eviction.md says what each policy is for.
//
// A policy knows objects by their slots in the node's table and keeps a few bytes for each: at most 24, with those for
// ids that it remembers after they went. It has no clock: time is counted in operations. Deterministic; not
// thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "kvferry/object_id.h"
#include "kvferry/store.h"

namespace kvferry::store {

using Slot = std::uint32_t;  // index of an object in the node's table; used again after erase()
inline constexpr Slot kNoSlot = UINT32_MAX;

struct ObjectFacts {
  ObjectId id;
  std::uint64_t bytes = 0;
  ObjectId parent;          // the block before it in its chain of blocks; nil: none, or not known
  std::uint32_t depth = 0;  // how many blocks of its chain lie before it
};

// What a policy asks the node's table instead of keeping it itself.
struct ObjectsView {
  std::function<ObjectId(Slot)> id;  // of an object that the policy holds
  std::function<std::optional<Slot>(const ObjectId&)>
      find;  // where an object is, also one that the policy does not hold
};

std::string_view policy_name(PolicyKind kind);  // "lru", "lfu", "s3fifo", "prefix"
std::optional<PolicyKind> policy_kind(std::string_view name);

class EvictionPolicy {
 public:
  using MayTake = std::function<bool(Slot)>;

  EvictionPolicy(const EvictionPolicy&) = delete;
  EvictionPolicy& operator=(const EvictionPolicy&) = delete;
  virtual ~EvictionPolicy() = default;

  // A new object in a slot that holds none.
  virtual void insert(Slot slot, const ObjectFacts& facts) = 0;
  // It was used: read, or put again.
  virtual void access(Slot slot) = 0;
  // The object is gone, whatever the reason; an id that was given up for want of room may be remembered.
  virtual void erase(Slot slot) = 0;
  // The object to give up next of those that `may_take` allows (it does not when the object is pinned). The object
  // stays until erase(). Looks at no more than kMaxLooks objects and puts those that it must not take behind others, so
  // a call may return kNoSlot while one that may be taken is left; the next calls go on from there.
  virtual Slot victim(const MayTake& may_take) = 0;
  virtual std::uint64_t memory_bytes() const = 0;  // what the policy itself holds

  static constexpr int kMaxLooks = 256;

 protected:
  EvictionPolicy() = default;
};

// For a node that holds up to `capacity_bytes` of objects. `objects` is asked in insert(), access() and erase(), whose
// object the table must know then.
std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind, std::uint64_t capacity_bytes, ObjectsView objects);

}  // namespace kvferry::store
